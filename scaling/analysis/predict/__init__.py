"""Predict a measured run under other settings, and back-test the prediction on the run itself.

In: tables as `Source`s (one for each measured world size), and the `Change`.
Out: `Prediction`; also the gain of a remedy, for `verdicts`.
"""
