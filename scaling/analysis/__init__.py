"""Tables in, frozen results out. Pure functions: no torch, no drawing.

In: the tables of `records` and the plan.
Out: `results`, one class an object of analysis.json.
"""
