"""A model, or its data, that fails for real in a chosen phase of one rank: copied into a test's folder and run there.

`faults` has an entry a launch, `WHAT@WHERE@RANK@STEP` or "": in launch k, entry k happens in the
rank's STEP-th step (in a data worker: at its STEP-th sample). Outside of a worker (no RANK) nothing happens. Steps in
which a rank counts work and times operators, before it meets the others, are counted apart, as `bench`: how many they
are depends on how long they take.
"""

import ctypes
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import torch

from scaling import Workload

STEP_S = 0.01
SLOW_S = 20


class Fault:
    def __init__(self, faults):
        launch = int(sys.argv[2]) if "RANK" in os.environ else 0
        entry = faults[launch] if launch < len(faults) and "RANK" in os.environ else ""
        self.what, self.where, rank, step = (entry or "@@-1@0").split("@")
        self.mine = int(rank) == int(os.environ.get("RANK", "-2"))
        self.peers = bool(entry) and not self.mine
        self.at, self.step = int(step), 0
        if self.mine and self.where in ("end", "close"):
            self.after_the_last_step()

    def here(self, where):
        if on_the_bench():
            if self.mine and where == "forward" and self.where == "bench":
                getattr(self, self.what)()
            return
        if where in ("forward", "sample"):
            self.step += 1
            if self.where == "collective" and self.step >= self.at:
                self.in_a_collective()
        if self.mine and where == self.where and self.step >= self.at:
            self.mine = False
            getattr(self, self.what)()

    def in_a_collective(self):
        """The peers come 2 s late, so this rank waits for them in the reduction when it happens, 1 s from now."""
        if self.peers:
            self.peers = False
            time.sleep(2)
        elif self.mine:
            self.mine = False
            threading.Timer(1, getattr(self, self.what)).start()

    def after_the_last_step(self):
        """Where no model has a say any more: as the records get their last line (end), or after it (close)."""
        from scaling.worker.session.session import LaunchSession

        clocks, close = LaunchSession.compare_clocks, LaunchSession.close
        LaunchSession.compare_clocks = lambda session, at: (self.here(at), clocks(session, at))[1]
        LaunchSession.close = lambda session: (self.here("close"), close(session))

    def kill(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def stop(self):
        os.kill(os.getpid(), signal.SIGSTOP)

    def sleep(self):
        time.sleep(3600)

    def spin(self):
        """C code that computes for ever without the interpreter's lock, as a host that waits for its device."""
        libc, lock = ctypes.CDLL(None), ctypes.c_int()
        libc.pthread_spin_init(ctypes.byref(lock), 0)
        libc.pthread_spin_lock(ctypes.byref(lock))
        libc.pthread_spin_lock(ctypes.byref(lock))

    def compute(self):
        """A step that takes SLOW_S of the processor, as the first forward of a large model on a busy machine."""
        end = time.process_time() + SLOW_S
        while time.process_time() < end:
            sum(range(10**5))

    def hold(self):
        """C code that never gives the interpreter's lock back: a mutex that it locks twice."""
        libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
        libc.pthread_mutex_lock(mutex)
        libc.pthread_mutex_lock(mutex)

    def throw(self):
        raise ValueError("out of cheese")

    def exit(self):
        sys.exit(3)

    def vanish(self):
        os._exit(0)

    def segfault(self):
        ctypes.string_at(0)

    def memory(self):
        """A real failure of the allocator, in this step and each later one: there are 64 MiB of address space left.

        For this allocation alone: under a limit that stays, what fails next may be a thread's first use of a library,
        where the C library ends the process with status 127.
        """
        self.mine = True
        limits = resource.getrlimit(resource.RLIMIT_AS)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, limits[1]))
        try:
            torch.ones(2**28)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)


def on_the_bench():
    """Whether the harness takes this step in scaling.worker.checks.kernels.note_step."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "benched":
        frame = frame.f_back
    return frame is not None


class Batch(tuple):
    """Unpacked in the input phase of every step."""

    __slots__ = ()

    def __iter__(self):
        self[0].fault.here("input")
        return super().__iter__()


class Samples(torch.utils.data.Dataset):
    """Made by data workers, one of which fails."""

    def __init__(self, faults):
        self.fault = Fault(faults)

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        self.fault.here("sample")
        return torch.full((128,), index / 4096), torch.zeros(128)


class Compute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, fault):
        ctx.fault = fault
        fault.here("forward")
        time.sleep(STEP_S)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.fault.here("backward")
        return gradient, None


class Model(torch.nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.fault = fault
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(4)])

    def forward(self, x):
        return self.layers(Compute.apply(self.layers[0](x), self.fault))


class Optimizer(torch.optim.SGD):
    fault = None

    def step(self, closure=None):
        self.fault.here("optimizer")
        return super().step(closure)


def factory(faults):
    fault = Fault(faults)
    fault.here("start")

    def make_batch(n, generator):
        inputs = torch.randn(n, 128, generator=generator)
        inputs.fault = fault
        return Batch((inputs, torch.zeros(n, 128)))

    def optimizer(parameters):
        made = Optimizer(parameters, lr=1e-4)
        made.fault = fault
        return made

    return Workload(
        module=Model(fault), make_batch=make_batch, loss=torch.nn.functional.mse_loss, optimizer=optimizer
    )
