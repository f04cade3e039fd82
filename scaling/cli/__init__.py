"""The command line: one verb a file, in the order of a user's work.

In: arguments.
Out: an exit status; results on standard output, everything else on standard error.
"""
