"""Fixtures of the tests of the transformer's kernels."""

import pytest

from rope_triton.kernel import launch


@pytest.fixture(autouse=True)
def no_launches_of_other_tests():
    """They may have other tiles."""
    launch.cache.clear()
