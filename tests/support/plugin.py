"""Fixtures for all test folders."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import support.wandb_files
import support.wandb_server
from hypothesis import settings
from support import composed_once, simulated_cluster
from support.fake_nvml import FakeNvml

from scaling.hardware.devices import Host

pytest_plugins = ("pytester",)

# Examples take longer beside other tests, so Hypothesis sets them no deadline.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

STOLEN = 0.03
"""Share of the busy time that the hypervisor may keep: 0.002 at most on an idle host, 0.6 was seen on a busy one."""
GROUPS = ("slurm", "wheel", "simulated", "browser", "measures", "faults", "launches", "more")
"""What `make test` leaves out; `make test-NAME` runs one of them, `make test-all` everything."""
TESTS = Path(__file__).parents[1]
SIMULATOR = TESTS.parent / "simulator" / "tests"
BEGUN = pytest.StashKey[dict[Path, Any]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    about = f"only one group: quick (what `make test` runs), {', '.join(GROUPS)}"
    parser.addoption("--group", choices=("quick", *GROUPS), help=about)
    parser.addoption(
        "--hydra-anew", action="store_true", help="let Hydra compose each time (support/composed_once.py)"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("measures") is not None:
            item.add_marker(pytest.mark.alone)
    wanted = config.getoption("--group")
    others = [item for item in items if wanted is not None and group_of(item) != wanted]
    if others:
        config.hook.pytest_deselected(items=others)
        left_out = set(others)
        items[:] = [item for item in items if item not in left_out]


def group_of(item: pytest.Item) -> str:
    """The group that a test belongs to: by what it needs, else by how long it takes."""
    root = SIMULATOR if item.path.is_relative_to(SIMULATOR) else TESTS
    parts = item.path.relative_to(root).parts
    if parts[0] == "slurm":
        return "slurm"
    if parts == ("test_wheel.py",):
        return "wheel"
    if parts[0] == "simulated_device":
        return "simulated"
    for name in ("browser", "measures"):
        if item.get_closest_marker(name) is not None:
            return name
    if item.get_closest_marker("slow") is None and item.get_closest_marker("alone") is None:
        return "quick"
    if parts[0] == "faults":
        return "faults"
    return "launches" if parts[0] == "launched" else "more"


@pytest.fixture(scope="session", autouse=True)
def _hydra_composes_once(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--hydra-anew"):
        composed_once.install()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Keep the processors' times from before a file's first test, since its fixtures may measure for all its tests."""
    begun = item.session.stash.setdefault(BEGUN, {})
    if item.path not in begun:
        begun[item.path] = Host().sample()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """Skip what is marked `measures` and failed while the hypervisor kept the cores: it has shown nothing.

    Only an AssertionError is skipped; any other exception is a defect on any machine.
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


@pytest.fixture(scope="session")
def cluster() -> ModuleType:
    """The simulator's module: Truth, Bucket, Straggler, simulate and its physics."""
    return simulated_cluster


@pytest.fixture(scope="session")
def fake_nvml() -> Callable[..., Any]:
    """fake_nvml(count=4) -> what stands for the pynvml module."""
    return FakeNvml


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
def nccl_library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """nccl_library(code): a library that says that it is this version of NCCL."""
    compiler = shutil.which("gcc") or shutil.which("cc") or shutil.which("g++")
    if compiler is None:
        pytest.skip("a C compiler is needed to make a library that answers as NCCL does")

    def make(code: int) -> Path:
        folder = tmp_path_factory.mktemp("nccl")
        (folder / "nccl.c").write_text(f"int ncclGetVersion(int *v) {{ *v = {code}; return 0; }}\n")
        built = folder / "libnccl.so.2"
        subprocess.run([compiler, "-shared", "-fPIC", "-o", built, folder / "nccl.c"], check=True)
        return built

    return make


@pytest.fixture(scope="session")
def wandb_files() -> ModuleType:
    """Reads offline W&B runs back: read_all(run folder's path)."""
    return support.wandb_files


@pytest.fixture
def wandb_server(monkeypatch):
    """A W&B server on this machine, and the key to it."""
    with support.wandb_server.serving() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
        yield server
