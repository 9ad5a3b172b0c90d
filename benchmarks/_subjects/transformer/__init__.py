"""Calls of ``rope_triton.transformer``."""
