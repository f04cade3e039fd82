"""`scaling run topology=simulated_...`: a simulation in place of a measurement. Torch runs in workers alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from scaling import resources
from scaling.cli.output import print_json, say
from scaling.errors import InputError
from scaling.settings.topology import SIMULATED_PREFIX

if TYPE_CHECKING:
    from scaling_simulator.simulate.simulations import Outcome

NAME, TIMELINE = "simulation.json", "timeline.json"


def is_simulated(words: Sequence[str]) -> bool:
    """Whether a command line asks for a simulated topology."""
    return any(word.startswith(f"topology={SIMULATED_PREFIX}") for word in words)


def refuse_simulated(verb: str, words: Sequence[str]) -> None:
    """InputError where a command line that measures asks for a simulated topology."""
    if is_simulated(words):
        named = next(word for word in words if word.startswith("topology="))
        raise InputError(
            f"{named}: nothing is measured there, so there is nothing to {verb}; `scaling run {named}` simulates it "
            "at once, in seconds for each world size"
        )


def simulate_run(words: Sequence[str]) -> int:
    """Simulate what a command line asks for, print it, and write it into `run_dir` where that is given."""
    flags = [word for word in words if word.startswith("-") and word not in {"-m", "--multirun", "--json"}]
    if flags:
        raise InputError(f"{flags[0]}: a simulated topology takes overrides, -m and --json")
    as_json = "--json" in words
    rest = [word for word in words if not word.startswith("-")]
    into = next((word.removeprefix("run_dir=") for word in rest if word.startswith("run_dir=")), None)
    if into is not None and Path(into).exists():
        raise InputError(f"run_dir={into}: is there already; name a new folder")
    resources.require_simulator()
    from scaling_simulator.simulate.simulations import simulations  # noqa: PLC0415  (--help stays fast)

    return print_outcomes(simulations(rest), as_json=as_json, into=None if into is None else Path(into))


def from_run(path: str, words: Sequence[str]) -> list[Outcome]:
    """Simulate a measured run's program under other settings. InputError where the simulator is not installed."""
    resources.require_simulator()
    from scaling_simulator.simulate import simulations  # noqa: PLC0415  (only such predictions need it)

    return simulations.from_run(path, words)


def print_outcomes(outcomes: Sequence[Outcome], *, as_json: bool, into: Path | None) -> int:
    """Print simulations, one after the other, then side by side; exit status 1 where none gave a step."""
    from scaling.records.files import encode, write_json  # noqa: PLC0415
    from scaling.report.terminal import draw  # noqa: PLC0415
    from scaling_simulator.simulate import documents  # noqa: PLC0415
    from scaling_simulator.simulate.ranking import ranked  # noqa: PLC0415

    results = [outcome.results for outcome in outcomes]
    machines = list(dict.fromkeys(outcome.results.topology for outcome in outcomes if outcome.every_mesh))
    rankings = [ranked([s for s in results if s.topology == name]) for name in machines]
    if rankings:
        if as_json:
            print_json(rankings[0] if len(rankings) == 1 else {"simulated": True, "rankings": rankings})
        for ranking in () if as_json else rankings:
            draw(Console(), documents.ranking(ranking))
    elif as_json:
        print_json(results[0] if len(results) == 1 else {"simulated": True, "simulations": results})
    else:
        console = Console()
        for simulation in results:
            draw(console, documents.document(simulation))
        if len(results) > 1:
            draw(console, documents.side_by_side(results))
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
