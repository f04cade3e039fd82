"""The self-test: faults that are injected on purpose, and whether the verdicts find them.

In: the analysis of a run that was made with a case's overrides, and its plan.
Out: `SelfTestCase`s and their `SelfTest`.
"""
