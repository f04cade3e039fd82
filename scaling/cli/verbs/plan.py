"""`scaling plan`: print what would run and write nothing. With --time it runs a few steps, to say how long it takes."""

from __future__ import annotations

import dataclasses

from scaling.cli.output import print_json, say
from scaling.cli.planned import describe, document
from scaling.cli.simulated_run import refuse_simulated
from scaling.cli.verbs.arguments import split
from scaling.config.compose import requests
from scaling.launchers.jobs import jobs_of
from scaling.launchers.tryout import promised


def main(arguments: list[str]) -> int:
    """Print every run that the overrides ask for, as text or as one JSON document."""
    rest, given = split("plan", arguments)
    refuse_simulated("plan", rest)
    asked = requests("plan", rest)
    jobs = jobs_of(asked.items, multirun=asked.multirun)
    if given.time:
        jobs = [dataclasses.replace(job, plan=promised(job.plan)) for job in jobs]
    if given.json and jobs:
        documents = [document(job.plan, job.folder) for job in jobs]
        print_json(documents[0] if len(documents) == 1 else {"plans": documents})
    elif jobs:
        say(*(line for job in jobs for line in describe(job.plan, job.folder).split("\n")))
    return 0
