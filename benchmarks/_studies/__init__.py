"""Studies: measurements for evidence, all run by one runner."""
