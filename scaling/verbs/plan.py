"""`scaling plan`: say what would run; touch nothing."""

from __future__ import annotations

import json

from scaling.config import requests
from scaling.report.planned import describe, document
from scaling.run import jobs_of
from scaling.verbs.arguments import split


def main(arguments: list[str]) -> int:
    """Every run that the overrides ask for, as text or as one JSON document."""
    rest, options = split("plan", arguments)
    asked = requests("plan", rest)
    jobs = jobs_of(asked.items, multirun=asked.multirun)
    if "--json" in options and jobs:
        documents = [document(job.plan, job.folder) for job in jobs]
        print(json.dumps(documents[0] if len(documents) == 1 else {"plans": documents}, indent=1))
    elif jobs:
        print("\n".join(describe(job.plan, job.folder) for job in jobs))
    return 0
