"""Calls of the rotation."""
