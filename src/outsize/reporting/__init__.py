"""Shared parts of reports and results: the HTML page, and facts about the machine."""
