"""Two versions of the package, compared."""
