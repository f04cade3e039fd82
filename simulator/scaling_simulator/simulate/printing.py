"""A simulation that a command line asks for: what is printed of it, and what is written into its folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from scaling.cli.output import print_json, say
from scaling.errors import InputError
from scaling.records.files import encode, write_json
from scaling.report.model import Document
from scaling_simulator.simulate import documents
from scaling_simulator.simulate.ranking import ranked
from scaling_simulator.simulate.simulations import Outcome, simulations

NAME, TIMELINE = "simulation.json", "timeline.json"


Show = Callable[[Document], None]
"""Draws a document on the terminal."""


def simulate_run(words: Sequence[str], show: Show) -> int:
    """Simulate what a command line asks for, print it, and write it into `run_dir` where that is given."""
    flags = [word for word in words if word.startswith("-") and word not in {"-m", "--multirun", "--json"}]
    if flags:
        raise InputError(f"{flags[0]}: a simulated topology takes overrides, -m and --json")
    as_json = "--json" in words
    rest = [word for word in words if not word.startswith("-")]
    into = next((word.removeprefix("run_dir=") for word in rest if word.startswith("run_dir=")), None)
    if into is not None and Path(into).exists():
        raise InputError(f"run_dir={into}: is there already; name a new folder")
    return print_outcomes(simulations(rest), show, as_json=as_json, into=None if into is None else Path(into))


def print_outcomes(
    outcomes: Sequence[Outcome], show: Show, *, as_json: bool, into: Path | None = None
) -> int:
    """Print simulations, one after the other, then side by side; exit status 1 where none gave a step."""
    results = [outcome.results for outcome in outcomes]
    machines = list(dict.fromkeys(outcome.results.topology for outcome in outcomes if outcome.every_mesh))
    rankings = [ranked([s for s in results if s.topology == name]) for name in machines]
    if rankings:
        if as_json:
            print_json(rankings[0] if len(rankings) == 1 else {"simulated": True, "rankings": rankings})
        for ranking in () if as_json else rankings:
            show(documents.ranking(ranking))
    elif as_json:
        print_json(results[0] if len(results) == 1 else {"simulated": True, "simulations": results})
    else:
        for simulation in results:
            show(documents.document(simulation))
        if len(results) > 1:
            show(documents.side_by_side(results))
    for index, outcome in enumerate(outcomes if into is not None else ()):
        assert into is not None
        folder = into if len(outcomes) == 1 else into / str(index)
        folder.mkdir(parents=True)
        write_json(folder / NAME, encode(outcome.results))
        if outcome.timeline:
            text = documents.chrome(outcome.timeline, outcome.results.topology, outcome.timeline_ranks)
            (folder / TIMELINE).write_text(text, encoding="utf-8")
        if not as_json:
            say(f"# written to {folder}: {NAME}{f', {TIMELINE} (Perfetto)' if outcome.timeline else ''}")
    return 0 if any(p.step_ms or p.fits is False for simulation in results for p in simulation.points) else 1
