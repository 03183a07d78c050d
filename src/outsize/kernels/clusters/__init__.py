"""Nearest centroids of points, and sums of points per cluster."""
