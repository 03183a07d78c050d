"""Linear layers with a ReLU, in training."""
