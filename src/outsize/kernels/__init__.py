"""Kernels of the hot loops, one folder per operation; the torch version is the reference."""
