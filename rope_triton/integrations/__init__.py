"""Models of other libraries that call this package; only ``torchtitan`` imports its library."""
