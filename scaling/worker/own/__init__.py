"""The probe in somebody else's training loop: the same records, from hooks and a schedule instead of arms."""
