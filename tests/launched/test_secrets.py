"""A real run: what it writes down of the environment, who can reach it meanwhile, and who can change it afterwards."""

from __future__ import annotations

import ipaddress
import subprocess
import time
from pathlib import Path

import pytest
from support.commands import start_python

NAMES = (
    "WANDB_API_KEY",
    "HF_TOKEN",
    "AWS_SECRET_ACCESS_KEY",
    "NCCL_TOKEN",
    "SLURM_JWT",
    "TORCH_PASSWORD",
    "CUDA_SECRET_THING",
    "MY_DATABASE",
)
SECRETS = {name: f"hush-{index}-do-not-tell" for index, name in enumerate(NAMES)}


def listening(pid: int) -> set[str]:
    """Addresses on which a process waits for connections, `address:port` of each."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        target = str(link.readlink())
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and rest[5] in inodes:
                address, port = local.split(":")
                words = bytes.fromhex(address)
                packed = b"".join(words[k : k + 4][::-1] for k in range(0, len(words), 4))
                found.add(f"{ipaddress.ip_address(packed)}:{int(port, 16)}")
    return found


def below(parent: int) -> list[int]:
    """A process and all that it started."""
    children: dict[int, list[int]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ppid = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(ppid, []).append(int(process.name))
    found = [parent]
    for pid in found:
        found += children.get(pid, [])
    return found


@pytest.mark.slow
def test_a_run_writes_no_secret_opens_only_torchruns_port_and_cannot_be_changed_by_others(tmp_path):
    arguments = ["topology=local", "topology.device=cpu", "topology.ranks_per_host=2", "world_sizes=[2]"]
    arguments += ["model=synthetic", "model.param_mb=1", "model.compute_ms=2", "measure=quick", "run_dir=run"]
    arguments += ["measure.budget_s=30", "+env.NCCL_DEBUG=WARN"]
    process = start_python(
        *("-m", "scaling.cli", "run", *arguments),
        cwd=tmp_path,
        env=SECRETS,
        stdout=subprocess.DEVNULL,
        umask=0,  # the shell's own asks for nothing
    )
    seen: dict[int, set[str]] = {}
    try:
        until = time.monotonic() + 240
        while process.poll() is None and time.monotonic() < until:
            for pid in below(process.pid):
                try:
                    seen.setdefault(pid, set()).update(listening(pid))
                except OSError:  # it has ended meanwhile
                    continue
            time.sleep(0.3)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0, err

    beyond = {pid for pid, places in seen.items() if any(not p.startswith(("127.", "::1:")) for p in places)}
    assert len(beyond) <= 1, seen  # torchrun, whose stores cannot be bound; no rank, and not the harness
    assert any(place.startswith("127.") for places in seen.values() for place in places)  # Gloo's pairs

    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {"env-0.json", "analysis.json", "report.html", "command.txt"} <= {path.name for path in files}
    assert any(path.suffix == ".wandb" for path in files)
    written = [path for path in (tmp_path / "run").rglob("*") if not path.is_symlink()]
    assert [path for path in written if path.stat().st_mode & 0o002] == []
    told = [
        (path, name)
        for path in files
        for name, value in SECRETS.items()
        if value.encode() in path.read_bytes()
    ]
    assert told == []
    assert "NCCL_DEBUG" in (tmp_path / "run/launches/0/env-0.json").read_text()
