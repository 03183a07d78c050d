"""Look-up of a batch, and its backward pass with the update of rows, each in few passes."""
