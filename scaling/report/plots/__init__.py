"""Figures, as plotly's own JSON."""
