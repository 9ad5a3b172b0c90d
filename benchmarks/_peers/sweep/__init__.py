"""``python -m benchmarks sweep``: the experiments this project grew out of, by one command each."""
