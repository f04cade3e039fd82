"""Whether torchrun can bind the ranks of this node to the cores near their GPUs.

    python numa_binding.py MODE RANKS

Exits with status 0 if it can. Otherwise prints the reason in one line on stdout and exits with status 1. The check is
needed because torchrun, and with it the launch, ends if one rank cannot be bound: its GPU has no NUMA node, or none
with a core that it may use, or there are fewer GPUs than ranks. MODE is node, socket, exclusive or core-complex. Each
rank is tried as torchrun starts it, with a command that does nothing.
"""

from __future__ import annotations

import os
import shutil
import sys

TRY_S = 30
"""Time limit for numactl with `true`."""


def obstacle(mode: str, ranks: int) -> str | None:
    """The reason why one of `ranks` ranks cannot be bound; None if all can."""
    try:
        from torch import cuda  # noqa: PLC0415
        from torch.distributed.elastic.multiprocessing.subprocess_handler import (  # noqa: PLC0415
            SubprocessHandler,
        )
        from torch.numa.binding import AffinityMode, NumaOptions  # noqa: PLC0415  # from torch 2.8 on
    except ImportError:
        return "torch's numa binding is missing"
    if shutil.which("numactl") is None:
        return "numactl is missing"
    gpus = cuda.device_count()
    if gpus < ranks:
        return f"{gpus} GPU{'' if gpus == 1 else 's'} for {ranks} ranks"
    for rank in range(ranks):
        try:
            started = SubprocessHandler(
                entrypoint="true",
                args=(),
                env={},
                stdout=os.devnull,
                stderr=os.devnull,
                local_rank_id=rank,
                numa_options=NumaOptions(affinity_mode=AffinityMode(mode)),
            )
            status = started.proc.wait(TRY_S)
        except Exception as error:  # noqa: BLE001  # any exception would end the launch
            said = str(error).strip().splitlines()[:1]
            return ": ".join([f"local rank {rank}", type(error).__name__, *said])
        if status:
            return f"local rank {rank}: numactl ended with {status}"
    return None


if __name__ == "__main__":
    why = obstacle(sys.argv[1], int(sys.argv[2]))
    if why is not None:
        print(why)
        sys.exit(1)
