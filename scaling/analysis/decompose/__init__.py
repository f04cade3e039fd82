"""Split the step at each world size: parts, loss by cause, late ranks, slow hosts, roofline.

In: tables and the plan, as `TrialRecords` (quantities, one value a round).
Out: `Point` and its parts, `HostSpeed`, case results, `Timeline`, `StepHistory`.
"""
