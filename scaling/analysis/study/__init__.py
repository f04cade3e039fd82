"""Separate launches of one's own script at several world sizes, as one scaling study. Pure.

In: the tables, plan and analysis of each run. Out: one Analysis, as `scaling run` makes it of a single run.
"""
