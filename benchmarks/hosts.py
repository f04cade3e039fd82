"""A benchmark's own script under torchrun on emulated hosts, one rank each: what an independent loop runs on."""

from __future__ import annotations

import json
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
        command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={hosts}", f"--node-rank={rank}"]
        command += ["--nproc-per-node=1", "--master-addr=10.77.0.1", "--master-port=29500"]
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
