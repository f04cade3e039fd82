"""`scaling predict`: a measured run under other settings, with the back-test of the model that says so."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from scaling import codec
from scaling.analysis.predictions import predictions
from scaling.analysis.results import Prediction
from scaling.analysis.ring import NoPathError
from scaling.analysis.sources import read_sources
from scaling.check_whatif import to_whatif
from scaling.collect import collect
from scaling.config import changed
from scaling.config_dir import require_own_names
from scaling.errors import InputError
from scaling.rebuild import read_analysis, read_config, read_plan
from scaling.report.terminal import print_prediction
from scaling.store import RunFolder
from scaling.verbs.arguments import split


def main(arguments: list[str]) -> int:
    """0 for an answer, also where it is that nothing can be said."""
    words, options = split("predict", arguments)
    own = _searched(Path(options["--config-dir"]).expanduser()) if "--config-dir" in options else []
    if not words or "=" in words[0] or words[0].startswith("-"):
        raise InputError(
            "scaling predict: a run folder is expected first, then overrides such as world_sizes=[8,64]"
        )
    found = prediction(RunFolder(words[0]).require(), [*words[1:], *own])
    if "--json" in options:
        print(json.dumps(codec.encode(found), indent=1))
    else:
        print_prediction(Console(), found)
    return 0


def _searched(folder: Path) -> list[str]:
    """What `--config-dir` means to Hydra."""
    if not folder.is_dir():
        raise InputError(f"--config-dir {folder}: no such folder; one with topology/mine.yaml is expected")
    require_own_names(folder)
    return [f"hydra.searchpath=[file://{folder.absolute()}]"]


def prediction(folder: RunFolder, overrides: list[str], *, start: int | None = None) -> Prediction:
    """The run of `folder` under `overrides`; `start`: from this measured world size only. InputError for nonsense."""
    plan = read_plan(folder)
    base, config = changed(read_config(folder), overrides)
    asked = to_whatif(config, base, plan, [o for o in overrides if not o.startswith("hydra.")])
    analysis = read_analysis(folder)
    sources = read_sources(collect(folder, plan), plan)
    try:
        return predictions(sources, plan, analysis, asked, start=start)
    except NoPathError as error:
        raise InputError(f"world_sizes={list(asked.world_sizes)}: {error}") from error
