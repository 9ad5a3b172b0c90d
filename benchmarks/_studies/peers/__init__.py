"""Rotation by other libraries, called as their users call them and checked as ours is."""
