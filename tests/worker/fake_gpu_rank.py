"""`fake_gpu_rank.py RUN SIZES [FAULT]`: one rank of a launch on a device that is CUDA's in all but its tensors.

Its events are instants of the host told by another clock, as in conftest.py, but of real time, so that a whole launch
can run on them. FAULT is `WHAT@RANK@N`: that rank runs out of memory (`oom`) in its N-th batch, or its device falls
off (`lost`) at its N-th event; `old` is a device without TF32 and bf16, whatever N is; `late` takes N seconds to have
its first batch on the host.
"""

from __future__ import annotations

import os
import struct
import sys
import time

import torch

from scaling.worker.accelerator.accelerator import Cpu
from scaling.worker.accelerator.clock import EventClock, now_ns
from scaling.worker.checks import ceilings
from scaling.worker.session import session

OFFSET_NS, DRIFT = -7_000_000_000, 40e-6
UUID = "0000-{:04d}"
"""As tests/support/fake_nvml.py has them: one device a rank."""
LOST = "CUDA error: unspecified launch failure"
FULL = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.11 GiB"


class Event:
    def __init__(self, device: Device) -> None:
        self.device, self.at = device, 0

    def record(self) -> None:
        self.device.count("lost")
        self.at = now_ns()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: Event) -> float:
        ms = (other.at - self.at) * (1 + DRIFT) / 1e6
        return struct.unpack("f", struct.pack("f", ms))[0]  # single precision, as the driver has it


class Device(Cpu):
    type = "cuda"

    def __init__(self, rank: int, fault: str) -> None:
        super().__init__()
        self.rank = rank
        self.what, who, left = (fault or "@-1@0").split("@")
        self.mine, self.left = int(who) == rank, int(left)
        self.clock = EventClock(lambda: Event(self), self.synchronize)

    def count(self, what: str) -> None:
        """One more of what the fault counts; from the last on it happens each time."""
        if self.mine and what == self.what:
            self.left -= 1
            if self.left <= 0:
                raise RuntimeError(LOST) if what == "lost" else torch.OutOfMemoryError(FULL)

    def stage(self, batch):
        if self.mine and self.what == "late":
            self.mine = False
            time.sleep(self.left)
        return batch

    def load(self, batch):
        self.count("oom")
        return batch

    def formats(self):
        found = super().formats()
        return tuple(f for f in found if f != "bf16") if self.mine and self.what == "old" else found

    def facts(self):
        named = {"device_name": "Fake H100", "device_uuid": UUID.format(self.rank), "nccl": "2.27.5"}
        return {**super().facts(), **named}


def main(run: str, sizes: str, fault: str = "") -> None:
    session.open_device = lambda _spec, *, rank, local_rank: Device(rank, fault)
    ceilings.measure = lambda *_: ()  # its matrices are of a size for real devices
    from scaling.worker.__main__ import main as worker

    os.environ["LOCAL_RANK"] = os.environ["RANK"]
    worker([run, "0", sizes])


if __name__ == "__main__":
    main(*sys.argv[1:])
