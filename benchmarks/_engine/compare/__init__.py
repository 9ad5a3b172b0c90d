"""From two versions of the package to a verdict."""
