"""The local launcher: one torchrun on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from scaling.launchers.launcher import Command, Launcher
from scaling.launchers.torchrun import environment, nccl_log, torchrun
from scaling.records.paths import LaunchFolder, RunFolder
from scaling.spec.batch_search import MEASURE
from scaling.spec.plan import Plan

WHERE = ("--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1")


class Local(Launcher):
    """All ranks on this machine."""

    def command(
        self,
        plan: Plan,
        folder: RunFolder,
        launch: LaunchFolder,
        sizes: list[int],
        what: str = MEASURE,
        program: Sequence[str] = (),
    ) -> Command:
        """One torchrun over the loopback interface."""
        argv = torchrun(plan.spec, max(sizes), folder, launch, sizes, *WHERE, what=what, program=program)
        env = {**nccl_log(plan.spec, launch), **environment(interface="lo"), **plan.spec.env}
        return Command(argv=tuple(argv), env=env)
