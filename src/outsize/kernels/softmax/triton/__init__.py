"""The softmax kernels in Triton, and what launches them."""
