"""Fixtures of the tests of the transformer's kernels."""

import pytest
import triton


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """In the interpreter, several blocks in the few numbers that it can do; on a GPU, no change."""
    if not triton.knobs.runtime.interpret:
        return
    from rope_triton.kernel import launch
    from rope_triton.transformer import activations, attention, losses, products

    launch.cache.clear()  # other tests have other tiles
    monkeypatch.setattr(activations, "_BLOCK", 16)
    monkeypatch.setattr(losses, "_BLOCK", 32)
    monkeypatch.setattr(losses, "chunk_of", lambda tokens, *_: min(tokens, 4))
    # Blocks of columns begin within a head, and one has queries and keys.
    monkeypatch.setattr(products, "tile", lambda *_: (products.Tile(32, 32, 16, 4, 2), 1))
    query, key = attention.Tile(32, 16, 4, 2), attention.Tile(16, 32, 4, 2)
    monkeypatch.setattr(attention, "tiles", lambda *_: attention._Tiles(query, query, key))
