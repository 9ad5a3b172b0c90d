"""Fixtures of the tests of the transformer's kernels."""

import pytest

from rope_triton.kernel import launch


@pytest.fixture(autouse=True)
def no_plans_of_other_tests(monkeypatch):
    """Whose tiles may be other ones."""
    monkeypatch.setattr(launch, "_plans", {})
