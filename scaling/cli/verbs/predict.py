"""`scaling predict`: predict a measured run under other settings, with a back-test of the model."""

from __future__ import annotations

from rich.console import Console

from scaling.analysis.results import Prediction
from scaling.cli.api import predict, require_quiet, simulated
from scaling.cli.loaded import Run
from scaling.cli.output import print_json
from scaling.cli.simulated_run import from_run, print_outcomes
from scaling.cli.verbs.arguments import split
from scaling.errors import InputError
from scaling.report.documents.prediction import document
from scaling.report.terminal import draw


def main(arguments: list[str]) -> int:
    """Print the prediction. The exit status is 0 even where nothing can be predicted."""
    words, given = split("predict", arguments)
    if not words or "=" in words[0] or words[0].startswith("-"):
        raise InputError(
            "scaling predict: a run folder is expected first, then overrides such as world_sizes=[8,64]"
        )
    run, asked = Run(words[0]), words[1:]
    if given.simulate or simulated(run, asked):
        if not given.simulate:
            require_quiet(run, anyway=given.anyway)
        return print_outcomes(from_run(words[0], asked), as_json=given.json)
    prediction = predict(run, *asked, config_dir=given.config_dir, anyway=given.anyway)
    assert isinstance(prediction, Prediction)
    if given.json:
        print_json(prediction)
    else:
        draw(Console(), document(prediction))
    return 0
