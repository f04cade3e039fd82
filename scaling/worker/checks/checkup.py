"""A launch that checks its ranks instead of training. All ranks run each stage together and record it as it ends."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from scaling.records.checkup import SCHEMA, Pair, RankCheck
from scaling.records.files import write_json
from scaling.settings.topology import BACKEND_OF, CPU
from scaling.worker.accelerator.accelerator import Accelerator, Precision
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.checks import ceilings
from scaling.worker.checks.parity import Parity
from scaling.worker.checks.steps import Bench
from scaling.worker.data.workload import Workload, build
from scaling.worker.session.environment import facts
from scaling.worker.session.session import LaunchSession

ALL_PAIRS_RANKS = 16
"""Up to this many ranks, every pair is measured; above, each rank with the next and with the one half-way round."""
BYTES_MIN, BYTES_MAX = 2**20, 2**26
LONG_NS = 150_000_000
"""A message of this duration is long enough: a traffic shaper's burst is small compared with it."""
REPEATS = 3


def pairs_of(world: int) -> tuple[tuple[int, int], ...]:
    """(first, second) of every pair to measure, in order; the same on every rank."""
    if world <= ALL_PAIRS_RANKS:
        return tuple((a, b) for a in range(world) for b in range(a + 1, world))
    near = {(r, (r + apart) % world) for r in range(world) for apart in (1, world // 2)}
    return tuple(sorted({(min(p), max(p)) for p in near}))


def _pair(first: bool, peer: int, device: Accelerator, group: Any, where: torch.device) -> tuple[int, int]:
    """(bytes, one-way ns) of the largest message, which goes there and back: half the round trip is its one-way time.

    The first rank decides on the next size and tells its peer.
    """
    size = BYTES_MIN
    _round_trip(first, peer, torch.zeros(1, device=where), device, group)  # connects
    while True:
        buffer = torch.zeros(size, dtype=torch.uint8, device=where)
        took = min(_round_trip(first, peer, buffer, device, group) for _ in range(REPEATS)) // 2
        go_on = torch.tensor([int(took < LONG_NS and size < BYTES_MAX)], device=where)
        tell: Callable[..., Any] = dist.send if first else dist.recv
        tell(go_on, peer, group=group)
        if not int(go_on.item()):
            return size, took
        size *= 4


def _round_trip(first: bool, peer: int, buffer: torch.Tensor, device: Accelerator, group: Any) -> int:
    moves: tuple[Callable[..., Any], ...] = (dist.send, dist.recv) if first else (dist.recv, dist.send)
    device.synchronize()
    begin = now_ns()
    for move in moves:
        move(buffer, peer, group=group)
    device.synchronize()
    return now_ns() - begin


OTHERS_S = 30.0
"""Time that rank 0 allows the other ranks beyond what it needed itself."""


class Checkup:
    """The worker's side of `scaling doctor`, on one rank."""

    def __init__(self, session: LaunchSession) -> None:
        self._session, self._spec, self._device = session, session.spec, session.device
        self._trial = session.trials[-1]
        self._record = RankCheck(
            schema=SCHEMA, rank=session.rank, host=session.host, stage=session.stage, facts={}
        )

    def run(self) -> None:
        """Run all stages. An error in the model is a finding, not a failure."""
        self._enter("machine")
        precision = Precision(self._spec.precision, self._device.type)
        workload = self._build()
        self._session.record_environment(self._spec, workload.module)
        self._note(facts=facts(self._device))
        self._enter("clocks")
        offset_ns, bound_ns = self._wall_offset()
        self._note(clock_offset_ns=offset_ns, clock_bound_ns=bound_ns)
        self._enter("links between ranks")
        self._note(pairs=self._pairs())
        self._enter("ceilings")
        formats = self._device.formats()
        self._note(ceilings=ceilings.measure(self._device, formats))
        self._enter("the model's step")
        self._model(workload, precision)
        del workload  # parity builds its own models, each as large
        self._device.release_memory()
        self._enter("precision parity")
        if self._record.model_error is None:
            self._parity(formats)
        self._enter("end")
        dist.destroy_process_group()

    def _build(self) -> Workload:
        torch.manual_seed(self._spec.seed)
        return build(self._spec.model.target, self._spec.model.args)

    def _model(self, workload: Workload, precision: Precision) -> None:
        workload.module.to(self._device.torch_device)
        bench = Bench(self._session.plan, self._trial, workload, self._device, precision, self._session.rank)
        try:
            self._note(work=bench.work())
            self._note(times=bench.times())
        except Exception as error:  # noqa: BLE001  # a model may raise anything
            devices = sorted({str(p.device) for p in workload.module.parameters()})
            text = str(error).strip().split("\n")[0]
            self._note(model_error=f"{type(error).__name__}: {text} (parameters on {', '.join(devices)})")

    def _parity(self, formats: tuple[str, ...]) -> None:
        begin = time.monotonic()
        parity = Parity(
            self._build, self._device, seed=self._spec.seed, batch=self._trial.batch, say=self._session.say
        )
        for record in parity.record(formats):
            self._note(parity=(*self._record.parity, record))
        self._note(parity_left_out=parity.left_out)
        # Only rank 0 reports progress, so a slower device needs time that is allowed for beforehand.
        self._session.say("waiting for the others", expected_s=OTHERS_S + time.monotonic() - begin)

    def _pairs(self) -> tuple[Pair, ...]:
        """What this rank exchanged with its peers, one pair of ranks at a time."""
        session, device, topology = self._session, self._device, self._spec.topology
        if session.world == 1:
            return ()
        group = session.groups[session.world].data
        # Gloo moves host memory, other back ends the device's.
        where = torch.device(CPU) if topology.backend == BACKEND_OF[CPU] else device.torch_device
        pairs = pairs_of(session.world)
        exchanges: list[Pair] = []
        for index, (first, second) in enumerate(pairs):
            self._turn(index)
            if session.rank in (first, second):
                peer = second if session.rank == first else first
                size, took = _pair(session.rank == first, peer, device, group, where)
                here = topology.host_of(peer) == session.host
                access = device.peer_access(topology.local_of(peer)) if here else None
                exchanges.append(Pair(peer=peer, bytes=size, duration_ns=took, peer_access=access))
        self._turn(len(pairs))
        return tuple(exchanges)

    def _turn(self, index: int) -> None:
        """Wait until the pairs before this one are done."""
        self._session.control.meet(f"pair/{index}", self._session.world)
        self._session.say(f"{index} pairs done")

    def _wall_offset(self) -> tuple[int, int]:
        """(offset, bound), ns, of this rank's wall clock against rank 0's.

        The ping-pongs compare the monotonic clocks; each rank adds how far its wall clock is ahead of its own.
        """
        compared = self._session.compare_clocks("begin")
        ahead_ns = time.time_ns() - now_ns()
        lead_ahead_ns = int(self._session.control.agree("wall", ahead_ns))
        return compared.offset_ns + ahead_ns - lead_ahead_ns, compared.bound_ns

    def _enter(self, stage: str) -> None:
        """Begin a stage together with all ranks, so that each stage meets the same load everywhere."""
        session = self._session
        session.stage = stage
        session.control.meet(f"stage/{stage}", session.world)
        self._note(stage=stage)
        session.enter(stage)

    def _note(self, **fields: Any) -> None:
        """Keep what was found, and write it at once."""
        self._record = dataclasses.replace(self._record, **fields)
        write_json(self._session.folder.check(self._session.rank), self._record, indent=None)
