"""Rules that every record obeys because time and the program allow nothing else: of blocks, steps and collectives.

In: whole blocks as tables. Out: the rows that break a rule, with the rule's words. Who looks: records.impossible.
"""
