"""The asv suite: what is measured, over which grid, and how. Importing it imports no torch."""
