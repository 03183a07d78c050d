"""The numbers by which kernels know the update rules; needs no numba."""

SGD, ROW_ADAGRAD, ADAGRAD, ADAM = range(4)
