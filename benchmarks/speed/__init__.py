"""Speed: clustering, kernels, and click models on real data."""
