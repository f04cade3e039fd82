"""Name the causes of lost efficiency, propose remedies, and check both.

In: points, fabric levels, the plan.
Out: `Verdict`s with `Remedy`s; `Verification` of a remedy.
"""
