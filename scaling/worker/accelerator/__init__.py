"""The device of a rank: its clock, memory and number formats."""
