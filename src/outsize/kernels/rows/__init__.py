"""Updates of rows: the rules of the optimizers, and rounding to 16 bits."""
