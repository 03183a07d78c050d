"""The sums and checks that follow a training step."""
