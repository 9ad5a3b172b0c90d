"""The sweep: experiments that compare this package with other libraries."""
