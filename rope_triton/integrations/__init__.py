"""Models of other libraries that call this package; no module imports its library."""
