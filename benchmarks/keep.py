"""Run the benchmarks one after the other and keep what each printed.

    python benchmarks/keep.py                 # all that are not measured yet: `make bench`
    python benchmarks/keep.py --anew          # all
    python benchmarks/keep.py startup scale   # only these
    python benchmarks/keep.py ground_truth --with="--keep DIR"   # one, with its own options

benchmarks/results/NAME.json keeps the output of each benchmark, its exit status and the machine that it ran on; the
tables of docs/ are written from it by hand. A benchmark that cannot run here (exit 77) leaves the figures from another
machine in place. Exit 1 where a bar was missed.

All benchmarks together take hours. Each result is kept as soon as its benchmark has ended, so an interrupted
`make bench` continues where it stopped. A result stays valid while the machine, the program, its settings and the
benchmark's source are the same.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ending import GRACE_S, end, exit_with
from harness import CANNOT

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
NAMES = (
    "ground_truth",
    "coverage",
    "false_alarms",
    "prediction",
    "simulation",
    "mesh_prediction",
    "plain_loop",
    "plain_arms",
    "lived_in",
    "own_loop",
    "loops",
    "stalls",
    "zoo",
    "meshes",
    "simulated_gpu",
    "published_series",
    "published_meshes",
    "curves",
    "models",
    "demo",
    "scale",
    "traces",
    "overhead",
    "tap",
    "startup",
    "joining",
    "ceilings",
    "resume",
    "promises",
    "gpu",
    "nccl_one_gpu",
)
"""Every benchmark, in the order in which they run."""
MEASURED = (
    *("scaling", "conf", "launch", "constraints.txt"),
    *(
        "benchmarks/emulated.py",
        "benchmarks/ending.py",
        "benchmarks/harness.py",
        "benchmarks/hosts.py",
        "benchmarks/gpu_parts",
        "benchmarks/simulated_parts",
        "benchmarks/overhead_parts",
        "benchmarks/truth_parts",
        "tests/support/simulated_cluster.py",
    ),
)
"""Files that the figures depend on, besides the benchmark's own file."""
MACHINE = ("cpu", "cores", "memory_gib", "kernel", "python", "torch")
VERDICTS = {0: "every bar met", 1: "a bar was missed", CANNOT: "could not run here"}


def conditions() -> dict[str, Any]:
    """The machine and the versions that a benchmark ran on."""
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="ascii").splitlines()
        if line.startswith("model name")
    ]
    return {
        "when": f"{dt.datetime.now(tz=dt.timezone.utc):%Y-%m-%d %H:%M} UTC",
        "cpu": names[0] if names else platform.machine(),
        "cores": cores,
        "memory_gib": round(memory),
        "load": round(os.getloadavg()[0], 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "scaling": version_of_this(),
    }


def version_of_this() -> str:
    """The commit, marked where measured files differ from it."""
    commit = _git("describe", "--always")
    changed = _git("status", "--porcelain", "--", *MEASURED, "benchmarks/*.py")
    return f"{commit}-dirty" if commit and changed else commit or "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def sources(script: Path) -> str:
    """A hash of the files that a benchmark's figures depend on, as they are in the working tree."""
    digest = hashlib.sha256()
    for given in (*(ROOT / name for name in MEASURED), script):
        files = sorted(given.rglob("*")) if given.is_dir() else [given]
        for path in files:
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def stands(script: Path, kept: Path) -> bool:
    """Whether kept figures are whole, made without options, on this machine and from the same sources."""
    if not kept.exists():
        return False
    document, here = json.loads(kept.read_text(encoding="utf-8")), conditions()
    same = all(document["conditions"].get(key) == here[key] for key in MACHINE)
    ended = document["status"] in (0, 1) and not document["options"]
    return same and ended and document.get("sources") == sources(script)


def measure(name: str, script: Path, kept: Path, options: Sequence[str] = ()) -> int:
    """Run one benchmark, print its output as it comes, and keep it; returns its exit status."""
    print(f"== {name}", flush=True)
    where, hashed, begin = conditions(), sources(script), time.monotonic()
    lines: list[str] = []
    with subprocess.Popen(
        [sys.executable, str(script), *options], cwd=ROOT, stdout=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line.rstrip("\n"))
        except BaseException:
            end_script(process)
            raise
    status = process.returncode
    if status == CANNOT and kept.exists():
        return status
    document = {
        "benchmark": name,
        "options": list(options),
        "conditions": where,
        "sources": hashed,
        "status": status,
        "seconds": round(time.monotonic() - begin, 1),
        "printed": lines,
    }
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return status


def end_script(process: subprocess.Popen[str]) -> None:
    """Like `end`, but with time for the script to end the programs that it started."""
    for tell, grace_s in ((None, GRACE_S), (process.terminate, 4 * GRACE_S)):
        if tell is not None:
            tell()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=grace_s)
            return
    end(process)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=", ".join(NAMES))
    parser.add_argument("--anew", action="store_true", help="also what is measured already")
    parser.add_argument(
        "--with", dest="given", default="", metavar="OPTIONS", help="of the one benchmark named"
    )
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if options.given and len(options.names) != 1:
        parser.error("--with: options are of one benchmark; name one")
    given = shlex.split(options.given)
    results = HERE / "results"
    ended = {}
    for name in options.names or NAMES:
        script, kept = HERE / f"{name}.py", results / f"{name}.json"
        if not options.names and not options.anew and stands(script, kept):
            print(f"== {name}: measured already ({kept.relative_to(ROOT)})")
            ended[name] = json.loads(kept.read_text(encoding="utf-8"))["status"]
            continue
        ended[name] = measure(name, script, kept, given)
    for name, status in ended.items():
        print(f"{name:<16}{VERDICTS.get(status, f'failed with {status}')}")
    return int(any(status not in (0, CANNOT) for status in ended.values()))


if __name__ == "__main__":
    exit_with(main)
