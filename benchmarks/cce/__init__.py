"""CCE: its theorem, its choices, and product quantization after training."""
