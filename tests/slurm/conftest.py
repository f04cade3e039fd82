"""One real Slurm cluster for all tests of this folder; where there can be none they skip, saying why."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.processes import wait_until

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("cluster.py")
SHORT = (
    "world_sizes=[1,2]",
    "model=synthetic",
    "model.param_mb=2",
    "model.compute_ms=15",
    "measure=quick",
    "measure.budget_s=3",
    "measure.rounds_max=3",
    "tracking=disabled",
)


def _cluster_module():
    spec = importlib.util.spec_from_file_location("slurm_test_cluster", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


MODULE = _cluster_module()
REASON = MODULE.unavailable()


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(FILE.parent):
            item.add_marker(pytest.mark.launch)
            item.add_marker(pytest.mark.alone)
            if REASON is not None:
                item.add_marker(pytest.mark.skip(reason=f"no Slurm cluster here: {REASON}"))


@pytest.fixture(scope="session")
def slurm():
    with MODULE.cluster() as running:
        yield running


@pytest.fixture(scope="session")
def at_login():
    """at_login(cluster, folder): a user at the login node, in that folder."""
    return Login


@pytest.fixture(scope="session")
def template():
    """slurm/job.sbatch, and what a person fills in by hand."""
    python = sys.executable
    return SimpleNamespace(path=ROOT / "slurm" / "job.sbatch", root=ROOT, python=python, short=SHORT)


@pytest.fixture
def login(slurm, tmp_path):
    """A user at the login node, in a folder of their own; their jobs are gone when they leave."""
    yield Login(slurm, tmp_path)
    slurm.run("scancel", "--user=root", "--full", "--signal=KILL")
    slurm.run("scancel", "--user=root")
    wait_until(lambda: not slurm.run("squeue", "--noheader").stdout.strip(), seconds=30)
    # After a job lost a node, 22.05's main scheduler takes cores of the others for used until it starts anew.
    slurm.run("scontrol", "reconfigure")
    slurm.wait_until_idle()


class Login:
    def __init__(self, slurm, home):
        self.slurm, self.home = slurm, home

    def scaling(self, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """The command, on the login node."""
        python = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "scaling.cli")
        return self.slurm.run(*python, *arguments, cwd=self.home, timeout=timeout)

    def outside(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """A command of this machine, beside the cluster."""
        return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)

    def submit(self, *overrides: str) -> str:
        """Hand a short run in, to the folder `run`; the job's id."""
        done = self.scaling("submit", "topology=slurm_pcie", *SHORT, "run_dir=run", *overrides)
        assert done.returncode == 0, done.stderr
        return self.jobs()[-1]

    def jobs(self) -> list[str]:
        return [job["id"] for job in self.read("jobs.json")["jobs"]]

    def read(self, name: str) -> dict:
        return json.loads((self.home / "run" / name).read_text())

    def state(self, job: str) -> str:
        said = self.slurm.run("scontrol", "--oneliner", "show", "job", job).stdout
        return said.partition("JobState=")[2].split()[0]

    def until_measuring(self, launch: int = 0) -> None:
        """Until a launch has come some way into its rounds."""
        wait_until(lambda: self.read(f"launches/{launch}/progress.json")["rounds"] > 0.5, seconds=150)

    def until_over(self, job: str) -> None:
        wait_until(
            lambda: self.state(job) in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"),
            seconds=200,
        )

    def finish(self) -> subprocess.CompletedProcess[str]:
        """Go on with what is left, to the end."""
        return self.scaling("submit", "--resume", "run", "--wait")

    def measured(self) -> dict[int, list[int]]:
        """World size -> the launches that measured it whole."""
        return {trial["world_size"]: trial["launches"] for trial in self.read("status.json")["trials"]}

    def statuses(self) -> dict[int, tuple[str, str]]:
        return {t["world_size"]: (t["status"], t["error"] or "") for t in self.read("status.json")["trials"]}
