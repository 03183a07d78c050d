"""Which row holds which key."""
