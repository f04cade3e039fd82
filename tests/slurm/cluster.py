"""A Slurm cluster on this machine, for tests: one controller, two partitions of two nodes, links that differ.

    python tests/slurm/cluster.py COMMAND...     run COMMAND on its login node, then end it all

Every node is an emulated host (launch/emulated_hosts.py), that is a network namespace behind a shaped link, with a
host name of its own and a real slurmd in it; `login` has munged and slurmctld. All of it lives in one PID and
one mount namespace that end with the process that made them, so nothing outlives it, not even a job. Needs
root, Debian's slurm-wlm and munge; exits with 77 and the reason where it cannot run.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

EMULATED_HOSTS = Path(__file__).parents[2] / "launch" / "emulated_hosts.py"
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "unshare", "nsenter")
RATES_BIT_S = {"pcie": 250_000_000, "nvlink": 1_000_000_000}
"""Partition -> what its nodes' links carry; conf/topology/slurm_*.yaml say the same."""
NODES_EACH = 2
LOGIN = "login"
START_S = 40
UNAVAILABLE = 77

SLURM_CONF = """\
ClusterName=test
SlurmctldHost=login({controller})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldDebug=info
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,sched_min_interval=0,bf_interval=2
ReturnToService=2
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
GresTypes=gpu
KillWait=20
MinJobAge=600
EnforcePartLimits=ALL
Licenses=machine:1
"""
"""`machine` is a licence that each job takes: two at once would measure each other on the few cores there are."""

CGROUP_CONF = "CgroupAutomount=no\nCgroupPlugin=cgroup/v1\nIgnoreSystemd=yes\n"


def unavailable() -> str | None:
    """Why there can be no cluster here; None where there can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if missing:
        return f"{', '.join(missing)} not found: apt-get install slurm-wlm munge"
    if os.geteuid() != 0:
        return "slurmd has to be started as root"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False
    )
    return None if tried.returncode == 0 else f"no namespaces here: {tried.stderr.decode().strip()}"


def addresses() -> dict[str, str]:
    """Node -> its address."""
    names = [f"{partition}{k + 1}" for partition in RATES_BIT_S for k in range(NODES_EACH)]
    return {LOGIN: "10.77.0.1"} | {name: f"10.77.1.{i + 1}" for i, name in enumerate(names)}


class Cluster:
    """A running cluster; commands run on its login node."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self._process = process
        self._login = ""

    def command(self, *argv: str, cwd: Path | None = None) -> list[str]:
        """`argv` as it has to be called to run on the login node, in `cwd`."""
        self._login = self._login or str(self._find("slurmctld"))
        inside = ("--net", "--mount", "--uts", "--pid")
        return ["nsenter", f"--target={self._login}", *inside, "env", f"--chdir={cwd or Path.cwd()}", *argv]

    def environment(self) -> dict[str, str]:
        """The caller's, with this cluster's configuration."""
        own = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_", "SQUEUE_"))}
        return {**own, "SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": _path()}

    def popen(self, *argv: str, cwd: Path | None = None) -> subprocess.Popen[str]:
        """Start a command on the login node."""
        return subprocess.Popen(
            self.command(*argv, cwd=cwd),
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, *argv: str, cwd: Path | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the login node to its end."""
        return subprocess.run(
            self.command(*argv, cwd=cwd),
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def processes(self, word: str = "") -> list[int]:
        """Process ids, on this machine, of the cluster's processes with `word` in their command line, jobs included."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                same = (entry / "ns/pid").stat().st_ino == self._pid_namespace()
                if same and word.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        return found

    def wait_until_idle(self) -> None:
        """Until every node waits for jobs; what went wrong is in the controller's log."""
        end, said = time.monotonic() + START_S, ""
        while time.monotonic() < end:
            with contextlib.suppress(LookupError):
                said = self.run("sinfo", "--noheader", "--Node", "--format=%N %T").stdout
                for line in said.splitlines():  # what a test took down
                    if line.split()[1].startswith(("down", "drain")):
                        self.run("scontrol", "update", f"nodename={line.split()[0]}", "state=resume")
                states = dict(line.split() for line in said.splitlines())
                if len(states) == len(addresses()) - 1 and set(states.values()) == {"idle"}:
                    return
            if self._process.poll() is not None:
                break
            time.sleep(0.3)
        logs = "".join(path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.log"))
        raise RuntimeError(f"the cluster did not come up: {said}\n{logs}")

    def _pid_namespace(self) -> int:
        (child,) = (Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")).read_text().split()
        return Path(f"/proc/{child}/ns/pid").stat().st_ino

    def _find(self, word: str) -> int:
        found = [
            pid for pid in self.processes(word) if b"slurmctld" in Path(f"/proc/{pid}/comm").read_bytes()
        ]
        if not found:
            raise LookupError(f"no {word} runs")
        return found[0]


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """Start one and end it, with everything that its jobs may have left."""
    # munge requires parent folders that other users cannot write to
    folder = Path(tempfile.mkdtemp(prefix="scaling-slurm-"))
    folder.chmod(0o755)
    # Removes the folder when this process is gone, however that came about: its end of the pipe closes then.
    janitor = subprocess.Popen(
        ["sh", "-c", 'cat; rm -rf -- "$1"', "janitor", str(folder)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        _write(folder)
        with (folder / "emulated_hosts.txt").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, str(EMULATED_HOSTS), str(folder / "network.json")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509  (one prctl)
            )
        try:
            made = Cluster(folder, process)
            made.wait_until_idle()
            yield made
        finally:
            process.kill()  # the kernel ends the PID namespace with it
            process.wait()
    finally:
        janitor.communicate()


def _write(folder: Path) -> None:
    known = addresses()
    (folder / "hosts").write_text(
        "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in known.items())
    )
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o400)
    for index in range(2):  # the scheduler wants device files; nothing opens them
        os.mknod(folder / f"gpu{index}", 0o600 | 0o020000, os.makedev(1, 3))
    conf = SLURM_CONF.format(controller=known[LOGIN], folder=folder)
    for partition in RATES_BIT_S:
        nodes = [name for name in known if name.startswith(partition)]
        conf += "".join(
            f"NodeName={n} NodeAddr={known[n]} CPUs=4 RealMemory=2000 Gres=gpu:2\n" for n in nodes
        )
        conf += f"PartitionName={partition} Nodes={','.join(nodes)} MaxTime=60\n"
    (folder / "slurm.conf").write_text(conf)
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-1]\n")
    (folder / "cgroup.conf").write_text(CGROUP_CONF)
    hosts = []
    for name, address in known.items():
        begin = f"mount --bind {folder}/hosts /etc/hosts && hostname {name} && "
        service = (
            f"munged --force --key-file={folder}/munge.key --socket={folder}/munge.socket --num-threads=2 "
            f"--pid-file={folder}/munged.pid --log-file={folder}/munged.log --seed-file={folder}/munged.seed && "
            f"exec slurmctld -D -c -f {folder}/slurm.conf"
            if name == LOGIN
            else f"exec slurmd -D -N {name} -f {folder}/slurm.conf"
        )
        hosts.append(
            {
                "name": name,
                "address": address,
                "rate_bit_s": RATES_BIT_S.get(name.rstrip("0123456789")),
                "command": ["unshare", "--uts", "--mount", "sh", "-c", begin + service],
                "env": {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _path()},
                "log": str(folder / f"{name}.txt"),
            }
        )
    network = {"hosts": hosts, "grace_s": 0, "caller_pid": os.getpid()}
    (folder / "network.json").write_text(json.dumps(network, indent=1))


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def main(argv: list[str]) -> int:
    """The status of the command, or 77."""
    reason = unavailable()
    if reason is not None:
        print(f"no Slurm cluster here: {reason}", file=sys.stderr)
        return UNAVAILABLE
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with cluster() as made:
        return subprocess.run(made.command(*argv), env=made.environment(), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
