"""``python -m benchmarks readme``: the tables of README.md, from the results that are stored."""
