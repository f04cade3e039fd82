"""Hydra's door. The only room that imports hydra and omegaconf.

In: a command line and the YAML of conf/.
Out: a checked `spec.request.Request`, or one line that says what would be accepted.
"""
