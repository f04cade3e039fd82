"""Fixtures for all test folders."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings

from scaling.telemetry.host import Host

pytest_plugins = ("pytester",)

# How long an example takes beside other tests shows nothing.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

STOLEN = 0.03
"""On a machine of one's own it is 0.002 at most; a hypervisor that is busy elsewhere has kept 0.6."""
BEGUN = pytest.StashKey[dict[Path, Any]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    about = "of the tests marked slow every N-th, from the K-th on; all by default"
    parser.addoption("--part", default="1/1", metavar="K/N", help=about)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("measures") is not None:
            item.add_marker(pytest.mark.alone)
    first, every = map(int, config.getoption("--part").split("/"))
    slow = [item for item in items if item.get_closest_marker("slow") is not None]
    others = [item for index, item in enumerate(slow) if index % every != first - 1]
    if others:
        config.hook.pytest_deselected(items=others)
        left_out = set(others)
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Keep the processors' times from before a file's first test, since its fixtures may measure for all."""
    begun = item.session.stash.setdefault(BEGUN, {})
    if item.path not in begun:
        begun[item.path] = Host().sample()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """Skip what is marked `measures` and failed while the hypervisor kept the cores: it has shown nothing.

    An assertion, that is: what raises something else is broken however busy the machine is.
    """
    if item.get_closest_marker("measures") is None:
        return (yield)
    begun = Host().sample()
    try:
        return (yield)
    except AssertionError as error:
        now = Host().sample()
        taken = max(stolen(before, now) for before in (begun, item.session.stash[BEGUN][item.path]))
        if taken > STOLEN:
            said = (str(error).splitlines() or [repr(error)])[0]
            pytest.skip(f"failed while the hypervisor kept {taken:.0%} of the busy time for others: {said}")
        raise


def stolen(before: dict[str, Any], after: dict[str, Any]) -> float:
    """Share of the busy time between two samples that the hypervisor gave to others (steal); 0 if it does not tell."""
    if after["cpu_stolen_ns"] is None:
        return 0.0
    busy, taken = (after[name] - before[name] for name in ("cpu_busy_ns", "cpu_stolen_ns"))
    return taken / busy if busy else 0.0


def load(path: Path) -> ModuleType:
    """Import a file by its path: siblings are no importable names under `--import-mode=importlib`."""
    if path.stem in sys.modules:
        return sys.modules[path.stem]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # before it runs: dataclasses look their own module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def cluster() -> ModuleType:
    """The simulator's module: Truth, Bucket, Straggler, simulate and its physics."""
    return load(Path(__file__).with_name("simulated_cluster.py"))


@pytest.fixture(scope="session")
def fake_nvml() -> Callable[..., Any]:
    """fake_nvml(count=4) -> what stands for the pynvml module."""
    return load(Path(__file__).with_name("fake_nvml.py")).FakeNvml  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def simulate(cluster: ModuleType) -> Callable[[Any, Path], Any]:
    """simulate(truth, path) -> Expected: writes the run folder `path`."""
    return cluster.simulate


@pytest.fixture(scope="session")
def left_behind() -> Callable[[Path], list[str]]:
    """Processes that still name a path in their command line."""

    def find(path: Path) -> list[str]:
        found = []
        for process in Path("/proc").iterdir():
            if not process.name.isdigit() or int(process.name) == os.getpid():
                continue
            try:
                line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(path) in line:
                found.append(line)
        return found

    return find


@pytest.fixture(scope="session")
def wandb_files() -> ModuleType:
    """Reads offline W&B runs back: read_all(run folder's path)."""
    return load(Path(__file__).with_name("wandb_files.py"))


@pytest.fixture
def wandb_server(monkeypatch):
    """A W&B server on this machine, and the key to it."""
    with load(Path(__file__).with_name("wandb_server.py")).serving() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
        yield server
