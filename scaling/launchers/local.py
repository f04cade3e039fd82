"""The local launcher: one torchrun on this machine."""

from __future__ import annotations

from scaling.launchers.launcher import Command, Launcher
from scaling.launchers.request import LaunchRequest
from scaling.launchers.shared_gpu import beside_mps, require_nccl, shares_gpu
from scaling.launchers.simulated import build_device
from scaling.launchers.torchrun import connecting, environment, nccl_log, numa_binding, torchrun
from scaling.spec.plan import Plan

WHERE = ("--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1")


class Local(Launcher):
    """All ranks on this machine."""

    def require(self, plan: Plan) -> None:
        """Simulated accelerators have to be built; ranks of one GPU need a new NCCL."""
        build_device(plan)
        if shares_gpu(plan.spec):
            require_nccl(plan.spec)

    def command(self, request: LaunchRequest) -> Command:
        """One torchrun over the loopback interface; beside an MPS server where its ranks share a GPU."""
        bound = numa_binding(request.spec)
        own = environment(interface="lo")
        env = {**nccl_log(request), **connecting(request), **own, **bound, **request.spec.env}
        argv = torchrun(request, request.ranks, *WHERE, bind=bool(bound))
        return Command(argv=beside_mps(argv) if shares_gpu(request.spec) else argv, env=env)
