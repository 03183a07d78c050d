"""Row updates: the update rules of the optimizers, and stochastic rounding to 16 bits."""
