"""Linear layers with a ReLU: their gradients."""
