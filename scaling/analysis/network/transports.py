"""Compare the path that NCCL took with the one that the topology promises. Pure."""

from __future__ import annotations

from scaling.analysis.results import Fabric
from scaling.spec.run import Spec

NO_P2P = "NCCL_P2P_DISABLE"
_SOCKET = "NET/Socket"


def warnings(fabric: Fabric, spec: Spec) -> tuple[str, ...]:
    """A warning for each difference, and NCCL's own warnings; empty without NCCL's log."""
    if fabric.nccl is None:
        return ()
    said = []
    for group in fabric.nccl.groups:
        if "SHM" in group.transports and _nvlink(spec, group.world_size) and spec.env.get(NO_P2P, "0") == "0":
            said.append(
                f"at {group.world_size} ranks NCCL goes through host memory (SHM) between devices of one host, "
                f"though topology={spec.topology.name} has NVLink between them: `scaling doctor` lists which devices "
                "can reach each other"
            )
        if _SOCKET in group.transports and spec.topology.nics:
            cards = ", ".join(nic.name for nic in spec.topology.nics)
            said.append(
                f"at {group.world_size} ranks NCCL goes over TCP ({_SOCKET}) between hosts, though "
                f"topology={spec.topology.name} has {cards}: check NCCL_IB_DISABLE, NCCL_IB_HCA and NCCL's log"
            )
    return (*said, *(f"NCCL warned: {warning}" for warning in fabric.nccl.warnings))


def _nvlink(spec: Spec, world_size: int) -> bool:
    """Whether NVLink (`nvidia-smi topo -m`: NV4, NV18; a level's class or name) joins all ranks of one host.

    NVLink bridges join only pairs; host memory is then the right path between pairs.
    """
    together = max(spec.topology.shares(world_size))
    nv = [
        level for level in spec.topology.levels if (level.link_class or level.name).upper().startswith("NV")
    ]
    return any(level.ranks is None or level.ranks >= together for level in nv)
