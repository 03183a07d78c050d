"""HET: training with bounded staleness, measured and held against its theory."""
