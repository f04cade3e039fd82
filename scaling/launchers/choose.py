"""Which launcher a plan asks for."""

from __future__ import annotations

from scaling.errors import InputError
from scaling.launchers.launcher import Launcher
from scaling.launchers.slurm.launcher import Slurm
from scaling.launchers.torchrun import Emulated, Local
from scaling.settings.plan import Plan

LAUNCHERS: dict[str, Launcher] = {"local": Local(), "emulated": Emulated(), "slurm": Slurm()}


def launcher_of(plan: Plan) -> Launcher:
    """The launcher of a plan; InputError for a plan that describes a training which this program did not launch."""
    launcher = LAUNCHERS.get(plan.spec.launcher)
    if launcher is None:
        raise InputError(
            f"{plan.id}: made by launcher={plan.spec.launcher}, not planned by `scaling run`, so it cannot be "
            "launched; start a new run"
        )
    return launcher
