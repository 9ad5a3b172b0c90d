"""What is measured: the cells of the grids, how each is called, and what is right."""
