"""Experimental: rows served by ranks that answer at any time, HET's asynchronous baseline."""
