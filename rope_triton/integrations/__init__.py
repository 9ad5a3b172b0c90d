"""Models of other libraries that call this package; each module needs its library."""
