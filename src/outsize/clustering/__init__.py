"""k-means for many points of small dimension, for several columns in one call."""

from outsize.clustering.kmeans import Clustering, kmeans
from outsize.clustering.nearest import CHUNK_POINTS, nearest
from outsize.clustering.sampling import draw_distinct

__all__ = ["CHUNK_POINTS", "Clustering", "draw_distinct", "kmeans", "nearest"]
