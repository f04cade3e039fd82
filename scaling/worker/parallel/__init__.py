"""How ranks train together: process groups, DDP and gradient compression."""
