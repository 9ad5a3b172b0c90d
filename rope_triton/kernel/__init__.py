"""The Triton kernels, what they are launched with, and their launches."""
