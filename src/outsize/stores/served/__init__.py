"""Experimental: an asynchronous parameter server in every rank, HET's baseline."""
