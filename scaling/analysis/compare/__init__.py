"""Compare two runs, point by point and case by case.

In: two analyses with their plans, environments and, for the split, `Source`s.
Out: `Comparison`, and how its ratios stand to a bar.
"""
