"""The hot loops, one operation a file; the torch version of each is the reference."""
