"""Handle processes, the machine, its GPU, checkouts of commits, and files."""
