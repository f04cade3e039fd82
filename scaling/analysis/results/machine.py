"""What the ranks of a run ran on, with equal ranks grouped."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineGroup:
    """Hosts and ranks that are equal in everything shown here; None where a rank could not tell."""

    hosts: tuple[str, ...]
    ranks: tuple[int, ...]
    cpu: str | None = None
    cores: int | None = None
    threads: int | None = None
    """Compute threads of each rank."""
    device_name: str | None = None
    device_memory_bytes: int | None = None
    driver: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    kernel: str | None = None
    python: str | None = None
    torch: str | None = None
    environment: tuple[tuple[str, str], ...] = ()
    """Variables with the same value on all of them."""
