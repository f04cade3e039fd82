"""Before the first step: the ranks of one DDP group agree on a folder, or on going without. Over the store only.

A rank that opens no probe must not hold up the others: every wait has an end, and no collective is
entered before all have said that they are there.
"""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling import codec
from scaling.errors import ScalingError
from scaling.plan import run_id
from scaling.store import LaunchFolder, RunFolder, default_folder

WAIT = timedelta(seconds=120)
"""How long the slowest rank may take to open its probe."""

_opened: dict[str, int] = {}
"""Probes so far by group: a key of the store is used once."""


class Agreement:
    """The ranks of `ddp`'s group, numbered within it."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        group = ddp.process_group
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.members = list(dist.get_process_group_ranks(group))
        count = _opened[group.group_name] = _opened.get(group.group_name, -1) + 1
        everybody = dist.distributed_c10d._get_default_store()  # noqa: SLF001
        prefix = f"scaling/own/{group.group_name}/{count}"
        self.store = dist.PrefixStore(prefix, everybody)  # type: ignore[attr-defined]
        self.hosts: list[int] = []
        """Host of each rank: what is joined by a network."""
        self.kernels: list[int] = []
        """Kernel of each rank: ranks that share one share its clock."""
        self.id = self.created = ""

    @property
    def host(self) -> int:
        """Of this rank."""
        return self.hosts[self.rank]

    def gather(self, key: str, mine: Any) -> list[Any]:
        """What every rank said, in the order of ranks; on rank 0 only, elsewhere empty."""
        self.store.set(f"{key}/{self.rank}", json.dumps(mine))
        if self.rank:
            return []
        deadline = dt.datetime.now(tz=dt.timezone.utc) + WAIT
        found = []
        for rank in range(self.world):
            left = deadline - dt.datetime.now(tz=dt.timezone.utc)
            try:
                self.store.wait([f"{key}/{rank}"], max(left, timedelta(milliseconds=10)))
            except dist.DistStoreError:
                raise ScalingError(
                    f"rank {rank} of {self.world} opened no Probe within {WAIT.seconds} s; every rank has to"
                ) from None
            found.append(json.loads(self.store.get(f"{key}/{rank}")))
        return found

    def hear(self, key: str, said: Any = None) -> Any:
        """What rank 0 said; `said` is it on rank 0."""
        if self.rank == 0:
            self.store.set(key, json.dumps(said))
            return said
        try:
            self.store.wait([key], WAIT + timedelta(seconds=10))
        except dist.DistStoreError:
            raise ScalingError("rank 0 opened no Probe; every rank has to") from None
        return json.loads(self.store.get(key))

    def folder(self, asked: Path | None) -> LaunchFolder:
        """The launch's folder, made on every rank; ScalingError, on every rank alike, where one cannot write."""
        decision: dict[str, Any] = {}
        try:
            there = self.gather("there", [[os.uname().nodename, _network()], _kernel()])
        except ScalingError as error:
            decision = {"error": str(error)}
        else:
            if self.rank == 0:
                hosts, kernels = (
                    _numbered([map(str, x) for x in column]) for column in zip(*there, strict=True)
                )
                decision = {"hosts": hosts, "kernels": kernels, **_place(asked)}
        decision = self.hear("decision", decision)
        if "error" in decision:
            raise ScalingError(decision["error"])
        self.hosts, self.kernels = decision["hosts"], decision["kernels"]
        self.id, self.created = decision["id"], decision["created"]
        found = RunFolder(decision["path"]).launch(decision["launch"])
        wrong = [text for text in self.gather("made", _make(found)) if text]
        first = self.hear("all made", wrong[0] if wrong else "")
        if first:
            raise ScalingError(first)
        return found


def _numbered(names: Iterable[Iterable[str]]) -> list[int]:
    """Numbers in the order of first appearance: [a, a, b] -> [0, 0, 1]."""
    texts = ["/".join(name) for name in names]
    order = list(dict.fromkeys(texts))
    return [order.index(text) for text in texts]


def _network() -> str:
    """Names the network namespace: containers and emulated hosts have one each."""
    try:
        return str(Path("/proc/self/ns/net").readlink())
    except OSError:
        return ""


def _kernel() -> str:
    """Names the running kernel: processes that share it share its monotonic clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _place(asked: Path | None) -> dict[str, Any]:
    """Where rank 0 would write: a new launch of the folder that was asked for, or a fresh folder."""
    now = dt.datetime.now(tz=dt.timezone.utc).astimezone()
    fresh = run_id(now, os.getcwd())  # noqa: PTH109
    folder = RunFolder((asked or default_folder(fresh)).absolute())
    if folder.plan.exists():
        return {"error": f"run_dir={asked}: holds a run that `scaling run` made; name another folder"}
    launches = folder.launches()
    return {
        "path": str(folder.path),
        "launch": launches[-1].index + 1 if launches else 0,
        "id": fresh,
        "created": now.isoformat(timespec="seconds"),
    }


def _make(folder: LaunchFolder) -> str:
    """Make the folder and see that it can be written to; what is wrong, or nothing."""
    probe = folder.path / f".{os.uname().nodename}-{os.getpid()}"
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        return f"run_dir={folder.path}: cannot be written to ({error.strerror}); name a folder that can"
    return ""


def head(agreement: Agreement, folder: LaunchFolder, plan: Any) -> dict[str, Any]:
    """The head line of this rank's file."""
    return {
        "rank": agreement.rank,
        "host": agreement.host,
        "hostname": os.uname().nodename,
        "launch": folder.index,
        "world": agreement.world,
        "groups": {str(agreement.world): list(range(agreement.world)), "1": [agreement.rank]},
        "warmup": {},
        "plan": codec.encode(plan),
    }
