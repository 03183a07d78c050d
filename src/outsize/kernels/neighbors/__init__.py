"""Drawing neighbours from edges that are grouped by target."""
