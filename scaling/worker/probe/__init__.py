"""The probe in a user's training loop: the same records, taken with hooks on a schedule instead of by arms."""
