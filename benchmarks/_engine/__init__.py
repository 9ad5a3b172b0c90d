"""Times calls, judges two versions and reports; knows nothing of what it measures."""
