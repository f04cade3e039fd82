"""`scaling run topology=simulated_...`: a simulation in place of a measurement. Torch runs in workers alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from scaling import resources
from scaling.errors import InputError
from scaling.settings.topology import SIMULATED_PREFIX

if TYPE_CHECKING:
    from scaling.report.model import Document
    from scaling_simulator.simulate.simulations import Outcome


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
    resources.require_simulator()
    from scaling_simulator.simulate import printing  # noqa: PLC0415  (--help stays fast)

    return printing.simulate_run(words, _show)


def from_run(path: str, words: Sequence[str]) -> list[Outcome]:
    """Simulate a measured run's program under other settings. InputError where the simulator is not installed."""
    resources.require_simulator()
    from scaling_simulator.simulate import simulations  # noqa: PLC0415  (only such predictions need it)

    return simulations.from_run(path, words)


def print_outcomes(outcomes: Sequence[Outcome], *, as_json: bool) -> int:
    """Print simulations; exit status 1 where none gave a step."""
    from scaling_simulator.simulate import printing  # noqa: PLC0415

    return printing.print_outcomes(outcomes, _show, as_json=as_json)


def _show(document: Document) -> None:
    from scaling.report.terminal import draw  # noqa: PLC0415

    draw(Console(), document)
