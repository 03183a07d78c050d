"""Losses, callbacks and loggers for other libraries, each imported only where it is used."""
