"""The calls that are measured: cells of the grids, how each is called, and what is right."""
