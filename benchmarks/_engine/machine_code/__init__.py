"""From a call to exact facts of its machine code. Needs no GPU."""
