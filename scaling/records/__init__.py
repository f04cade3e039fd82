"""What is on disk, and its one reader.

In: files of a run's folder, and values to be written there.
Out: names (`paths`), a run's documents (`run`), a launch's files (`launch`), tables; files written by rename.
"""
