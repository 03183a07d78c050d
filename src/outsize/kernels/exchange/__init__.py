"""What ranks do to the ids and lines of a round: route, compare clocks, join, and sum."""
