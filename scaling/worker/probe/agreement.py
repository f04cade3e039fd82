"""Before the first step, the ranks that train together agree on a folder, or on training without the probe.

They agree over the store only. A rank that opens no probe must not hold up the others: every wait ends, and no
collective is entered before every rank has reported.

Compare the clocks of an own loop between two steps, from time to time, where ranks run on different kernels.

Two kernels' clocks drift apart by some 20 us per second and a training runs for days, so comparisons at its two ends
are not enough. There may be none at the end, since a rank may be gone. The intervals therefore grow: whenever a loop
ends, its clocks were compared over about half of it, or until EVERY_S ago. The first rank of each kernel measures for
all ranks of its kernel.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import json
import os
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from scaling.errors import ScalingError, let_go, raise_from_signal
from scaling.reading import system_text
from scaling.records.format import ClockRecord
from scaling.records.paths import LaunchFolder, RunFolder, default_folder
from scaling.settings.plan import run_id
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.parallel.torch_private import default_store
from scaling.worker.session.control import Control, compare_clocks

WAIT = timedelta(seconds=120)
"""Longest time that the slowest rank may take to open its probe, where no collective fails sooner (`patience`)."""
BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Names the running kernel; processes that share it share its monotonic clock."""
POLL_S = 0.02
"""Between two looks for ranks that ask."""


def patience(groups: Sequence[Any], most: timedelta = WAIT) -> timedelta:
    """How long a rank may wait for others that went on training: half the time after which their collectives fail."""
    if not (dist.is_available() and dist.is_initialized()):
        return most
    limits = [most]
    for group in (dist.distributed_c10d._get_default_group(), *groups):  # noqa: SLF001
        for device in group._device_types:  # noqa: SLF001
            with contextlib.suppress(AttributeError, RuntimeError):  # a back end without options
                limits.append(group._get_backend(device).options._timeout / 2)  # noqa: SLF001
    return min(limits)


class Agreement:
    """The ranks of one model, numbered among them, and what they agreed on."""

    def __init__(self, members: Sequence[int], wait: timedelta = WAIT) -> None:
        """`members`: the ranks in the default group, in their order. `wait`: for the slowest of them."""
        self.members, self._wait = list(members), wait
        together = dist.is_available() and dist.is_initialized()  # one process alone needs no group
        self.rank, self.world = self.members.index(dist.get_rank() if together else 0), len(self.members)
        everybody: Any = default_store() if together else dist.HashStore()  # type: ignore[attr-defined]
        self._met = dist.PrefixStore(f"scaling/own/{self.members}", everybody)  # type: ignore[attr-defined]
        self.store: Any = None
        """Keys of this probe alone, once the ranks have met."""
        self.hosts: list[int] = []
        """Host of each rank, as numbers in the order of first appearance. Hosts are joined by a network."""
        self.kernels: list[int] = []
        """Kernel of each rank. Ranks with the same kernel share its clock."""
        self.id = self.created = ""

    @property
    def host(self) -> int:
        """Host of this rank."""
        return self.hosts[self.rank]

    def meet(self) -> None:
        """Agree on a prefix of the store that no other probe has used. ScalingError where a rank does not come.

        The store outlives a process group, and may hold keys of an earlier probe over the same ranks. So each rank
        asks with a word of its own, and rank 0 answers that word: an old question gets an answer that nobody reads.
        """
        question = uuid.uuid4().hex
        if self.rank == 0:
            self.store = dist.PrefixStore(question, self._met)  # type: ignore[attr-defined]
            self._answer(question)
        else:
            self._met.set(f"asked/{self.rank}", question)
            try:
                self._met.wait([f"answer/{question}"], self._wait * 13 / 12)
            except dist.DistStoreError:
                raise ScalingError("rank 0 opened no Probe; every rank has to") from None
            word = self._met.get(f"answer/{question}").decode()
            self.store = dist.PrefixStore(word, self._met)  # type: ignore[attr-defined]
            self._met.set(f"came/{word}/{self.rank}", "")

    def _answer(self, word: str) -> None:
        """On rank 0: answer every other rank until it has come."""
        missing = dict.fromkeys(range(1, self.world), "")
        end = time.monotonic() + self._wait.total_seconds()
        while missing:
            for rank, answered in list(missing.items()):
                if self._met.check([f"came/{word}/{rank}"]):
                    del missing[rank]
                elif self._met.check([f"asked/{rank}"]):
                    asked = self._met.get(f"asked/{rank}").decode()
                    if asked != answered:
                        self._met.set(f"answer/{asked}", word)
                        missing[rank] = asked
            if missing and time.monotonic() > end:
                raise ScalingError(
                    f"rank {min(missing)} of {self.world} opened no Probe within {self._wait.seconds} s; "
                    "every rank has to"
                )
            time.sleep(POLL_S)

    def judge(self, key: str, mine: Any, rule: Callable[[list[Any]], Any]) -> Any:
        """Rank 0's `rule` of every rank's value, on every rank. ScalingError where one does not answer in time."""
        patience_s = self._wait.total_seconds() * 13 / 12  # rank 0 says first who is missing
        control = Control(self.store, self.rank, patience_s=patience_s)
        try:
            return control.judge(key, mine, self.rank, self.world, rule)
        except TimeoutError:
            raise ScalingError(f"another rank did not answer within {self._wait.seconds} s") from None

    def folder(self, asked: Path | None) -> LaunchFolder:
        """Agree on the launch's folder and make it. ScalingError, on every rank, where one of them cannot write."""
        try:
            self.meet()
        except ScalingError as error:
            if self.rank == 0:  # those that came wait for a decision
                self.store.set("decision/judged", json.dumps({"error": str(error)}))
            raise
        place = [f"{os.uname().nodename}/{_network()}", system_text(BOOT) or ""]
        decision = self.judge("decision", place, functools.partial(_decide, asked))
        if "error" in decision:
            raise ScalingError(decision["error"])
        self.hosts, self.kernels = decision["hosts"], decision["kernels"]
        self.id, self.created = decision["id"], decision["created"]
        launch = RunFolder(decision["path"]).launch(decision["launch"])
        wrong = self.judge("made", _make(launch), lambda texts: next(filter(None, texts), ""))
        if wrong:
            raise ScalingError(wrong)
        return launch


def _decide(asked: Path | None, places: Sequence[Sequence[str]]) -> dict[str, Any]:
    """On rank 0: the ranks' hosts and kernels, and another launch in the requested folder, or in a new one.

    Else what is wrong, as `error`.
    """
    now = dt.datetime.now(tz=dt.timezone.utc).astimezone()
    try:
        hosts, kernels = map(_numbered, zip(*places, strict=True))
        fresh = run_id(now, os.getcwd())  # noqa: PTH109
        folder = RunFolder((asked or default_folder(fresh)).absolute())
        if folder.plan.exists():
            return {"error": f"run_dir={asked}: holds a run that `scaling run` made; name another folder"}
        launch = _claim(folder)
    except ScalingError as error:
        return {"error": str(error)}
    except (OSError, ValueError) as error:  # a removed working directory, a path that is none
        raise_from_signal(error)
        why = getattr(error, "strerror", None) or error
        return {"error": f"rank 0 cannot choose a folder ({why}); name one with run_dir"}
    return {
        "hosts": hosts,
        "kernels": kernels,
        "path": str(folder.path),
        "launch": launch,
        "id": fresh,
        "created": now.isoformat(timespec="seconds"),
    }


def _claim(folder: RunFolder) -> int:
    """Make the folder of another launch: other ranks may train apart from these and ask for the same run at once."""
    launches = folder.launches()
    index = launches[-1].index + 1 if launches else 0
    while True:
        try:
            folder.launch(index).path.mkdir(parents=True)
        except FileExistsError:
            index += 1
        except OSError as error:  # every rank looks whether it can write there
            raise_from_signal(error)
            return index
        else:
            return index


def _numbered(names: Sequence[str]) -> list[int]:
    """Numbers in the order of first appearance: [a, a, b] -> [0, 0, 1]."""
    order = list(dict.fromkeys(names))
    return list(map(order.index, names))


def _network() -> str:
    """Name of the network namespace; containers and emulated hosts have one each."""
    with let_go(OSError):
        return str(Path("/proc/self/ns/net").readlink())
    return ""


def _make(folder: LaunchFolder) -> str:
    """Make the folder and check that it can be written to. Returns what is wrong, or an empty text."""
    probe = folder.path / f".{os.uname().nodename}-{os.getpid()}"
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise_from_signal(error)
        return f"run_dir={folder.path}: cannot be written to ({error.strerror}); name a folder that can"
    return ""


FIRST_S, EVERY_S = 1.0, 120.0
"""Time between the first two comparisons; it doubles each time, up to EVERY_S."""
FIRST_SLOT = 1
"""The first comparison waits for this slot: before the ranks have waited for one another, one may be far ahead."""
TIMEOUT = timedelta(seconds=30)


class Clocks:
    """Records this rank's offset to rank 0 before the slots that rank 0 chooses."""

    def __init__(self, agreement: Agreement) -> None:
        """Makes a group, as a collective, where there is more than one kernel."""
        self._rank = agreement.rank
        self._kernel = agreement.kernels[agreement.rank]
        first = [agreement.kernels.index(k) for k in sorted(set(agreement.kernels))]
        self._leads = agreement.rank in first
        self._ranks = [agreement.members[r] for r in first]
        self._me = agreement.members[agreement.rank]
        self._control = Control(agreement.store, agreement.rank, patience_s=TIMEOUT.total_seconds())
        self._next = FIRST_SLOT
        self._wait_s = FIRST_S
        self._last_ns, self._last_slot = now_ns(), 0
        self._group: Any = None
        if len(first) > 1:
            whole = len(agreement.members) == dist.get_world_size()
            self._group = dist.new_group(
                agreement.members, backend="gloo", timeout=TIMEOUT, use_local_synchronization=not whole
            )

    def look(self, slot: int, note: Callable[[ClockRecord], None]) -> None:
        """Compare the clocks if it is time; `note` takes the record. Raises when a peer does not answer."""
        if self._group is None or slot < self._next:
            return
        mine, following, first = None, 0, self._rank == 0
        if self._leads:
            mine = dataclasses.asdict(compare_clocks(f"slot {slot}", self._me, self._ranks, self._group))
        if first:
            following = self._after(slot)
        record = self._control.agree(f"clock/{slot}/{self._kernel}", mine, lead=self._leads)
        self._next = self._control.agree(f"clock/{slot}/next", following, lead=first)
        note(ClockRecord(**record))  # the same kernel has the same clock

    def _after(self, slot: int) -> int:
        """The slot for the next comparison, at the rate of slots since the last one. Only rank 0 calls it."""
        now = now_ns()
        slots = max(1, slot - self._last_slot)
        each_s = (now - self._last_ns) / 1e9 / slots
        self._last_ns, self._last_slot = now, slot
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, EVERY_S)
        return slot + max(1, round(wait_s / each_s))
