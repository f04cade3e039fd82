"""One line for frameworks that run the loop themselves; each file is imported where its framework is used.

In: what such a framework tells its callbacks.
Out: the steps of a Probe.
"""
