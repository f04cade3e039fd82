"""A launch from its start to its end on one rank."""
