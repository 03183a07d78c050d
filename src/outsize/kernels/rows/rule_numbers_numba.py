"""The numbers by which kernels know the update rules and what they sum; needs no numba."""

SGD, ROW_ADAGRAD, ADAGRAD, ADAM = range(4)

NO_SQUARES, MEAN_SQUARES, SQUARES = range(3)
