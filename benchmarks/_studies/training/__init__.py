"""A training step of a transformer by several providers, and what RoPE costs in it."""
