"""Why a launch ended: what its processes left, and the cause apart from what followed."""
