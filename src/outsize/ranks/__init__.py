"""What ranks share: collectives, messages, ownership and the files each rank writes."""
