"""Checks that ids are within their tables, without waiting for the device."""
