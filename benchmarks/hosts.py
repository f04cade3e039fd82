"""Run a benchmark's script under torchrun, on emulated hosts with one rank each or on this machine."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from ending import run

from scaling import resources
from scaling.units import parse_rate_bit_s

UNSHARE = ("unshare", "--user", "--map-root-user", "--net", "--mount")


def run_on_hosts(script: str, arguments: list[str], *, hosts: int, rate: str, folder: Path) -> None:
    """Run `script` with `arguments` on each of `hosts` hosts, behind a link of `rate`; logs go to `folder`."""
    entries = []
    for rank in range(hosts):
        command = [*_torchrun(folder), f"--nnodes={hosts}", f"--node-rank={rank}", "--nproc-per-node=1"]
        command += ["--master-addr=10.77.0.1", "--master-port=29500"]
        entries.append(
            {
                "name": f"host{rank}",
                "address": f"10.77.0.{rank + 1}",
                "rate_bit_s": parse_rate_bit_s(rate, "--rate"),
                "command": [*command, str(Path(script).absolute()), *arguments],
                "env": {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"},
                "log": str(folder / f"loop-{rank}.txt"),
            }
        )
    network = folder / "network.json"
    network.write_text(json.dumps({"hosts": entries, "grace_s": 5}))
    parent = str(resources.folder("launch") / "emulated_hosts.py")
    run([*UNSHARE, sys.executable, parent, str(network)], check=True)


def run_on_loopback(script: str, arguments: list[str], *, ranks: int, folder: Path) -> None:
    """Run `script` with `arguments` as `ranks` ranks on this machine; torchrun's files go to `folder`."""
    command = [*_torchrun(folder), f"--nproc-per-node={ranks}", "--rdzv-backend=c10d"]
    command += ["--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1", script, *arguments]
    run(command, check=True, env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"})


def _torchrun(folder: Path) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", f"--log-dir={folder / 'torchrun'}"]
