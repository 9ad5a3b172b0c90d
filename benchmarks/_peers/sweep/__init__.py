"""The sweep: four experiments that compare this package with other libraries."""
