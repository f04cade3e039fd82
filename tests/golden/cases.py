"""What the golden documents are made of: each case is a name and a function that gives the path of records.

Measured records are small archives in `records/`; simulated clusters are made anew; the real ones of two NCCL ranks are
read from the folder of shared data where it is there. `document` gives what `scaling analyze` would write, without what
depends on the machine.
"""

from __future__ import annotations

import json
import lzma
import math
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.own_loops import own_loop
from support.simulated_cluster import Bucket, Straggler, Truth, simulate
from support.traces import SHARED, Trace

from scaling.analysis.run import derive
from scaling.analysis.study.study import study_at
from scaling.records.files import encode
from scaling.records.paths import RunFolder
from scaling.traces.profiler.read import read_all
from scaling.traces.profiler.summary import analyse

HERE = Path(__file__).parent
LATE = Straggler(rank=1, extra_ns=6e6, phase="input")
TRUTHS = {
    "ddp": Truth(rounds=5, steps=5),
    "late_rank": Truth(rounds=5, steps=5, stragglers=(LATE,), clock_offset_ns=(0, 10**9, -(10**9), 5)),
    "two_late_ranks": Truth(
        world_sizes=(8,),
        hosts=4,
        ranks_per_host=2,
        rounds=4,
        steps=4,
        stragglers=(LATE, Straggler(rank=6, extra_ns=8e6, alone=True)),
        slow_links=((2, 1.5),),
    ),
    "buffers": Truth(world_sizes=(1, 2), hosts=2, rounds=5, steps=4, buffers_ns=1e6),
    "tokens": Truth(
        world_sizes=(2,), hosts=2, rounds=5, steps=4, tokens=(900, 1500), tokens_vary=0.2, token_ns=8e3
    ),
    "accelerators": Truth(
        world_sizes=(1, 4, 16),
        hosts=2,
        ranks_per_host=8,
        mode="strong",
        rounds=4,
        steps=4,
        channels=1,
        alpha_ns=5e3,
        beta_ns=0.05,
    ),
    "communicators": Truth(
        world_sizes=(4,),
        rounds=4,
        steps=4,
        detailed=(0, 1, 3),
        communicators=(0, 1, 1),
        buckets=tuple(Bucket(bytes=2**21, at=at) for at in (0.3, 0.7, 1.0)),
    ),
}


def document(path: Path) -> Any:
    """What is derived from the records at `path`, as JSON values without paths."""
    if any(path.glob("ranks-*")):
        analysis = study_at(RunFolder(path))[0]
    elif any(path.glob("rank-*.json.gz")):
        files = sorted(path.glob("rank-*.json.gz"))
        analysis = analyse(*read_all(files), batch=32, name="trace")[0]
    else:
        analysis = derive(RunFolder(path))[0].analysis
    values: Any = json.loads(json.dumps(encode(analysis)).replace(str(path), "RUN"))
    if any(path.glob("rank-*.json.gz")):  # named by the time of their analysis
        values["run"] |= {"id": "", "started": ""}
    return values


def _simulated(truth: Truth) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        simulate(truth, folder / "run")
        return folder / "run"

    return make


def _measured(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        with tarfile.open(HERE / "records" / f"{name}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        return folder / name

    return make


def _shared(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        if not (SHARED / name).is_dir():
            raise FileNotFoundError(f"{SHARED / name} is not there; SCALING_SHARED_DATA names the folder")
        return Path(shutil.copytree(SHARED / name, folder / "run", copy_function=shutil.copyfile))

    return make


def _trace(folder: Path) -> Path:
    """Two ranks, five whole steps of 100 us; rank 1 comes 10 us late to an all-reduce that is partly hidden."""
    for rank in range(2):
        trace, late = Trace(rank), 10 * rank
        for step in range(6):
            begin = 1000 + 100 * step
            trace.step(step, begin - 5, 99)
            trace.add("cpu_op", "aten::mm", begin - 4, 2)
            trace.kernel("gemm", begin, 40 + late, launched=begin - 4)
            trace.all_reduce(begin + 30 + late, 40 - late, launched=begin + 20)
        trace.write(folder / "trace" / f"rank-{rank}.json.gz")
    return folder / "trace"


CASES: dict[str, Callable[[Path], Path]] = {
    **{f"cluster_{name}": _simulated(truth) for name, truth in TRUTHS.items()},
    "cluster_own_loop": lambda folder: own_loop(Truth(world_sizes=(2,), rounds=5, steps=4), folder / "run"),
    **{
        archive.name.removesuffix(".tar.xz"): _measured(archive.name.removesuffix(".tar.xz"))
        for archive in sorted((HERE / "records").glob("*.tar.xz"))
    },
    "trace": _trace,
    **{
        f"nccl_{name}": _shared(f"nccl_one_h100/{name}")
        for name in ("own", "ownlate", "resnet", "vary", "trace")
    },
    "sure_and_wrong_demo_fast_link": _shared("sure_and_wrong/demo_fast_link"),
}


def expected_file(name: str) -> Path:
    return HERE / "expected" / f"{name}.json.xz"


def expected(name: str) -> Any:
    return json.loads(lzma.decompress(expected_file(name).read_bytes()))


ROUNDING = 1e-12
"""How far a figure may be from another processor's, relative: matrix products add in the order that suits each."""


def differences(was: Any, now: Any, where: str = "", *, rounding: float = 0.0) -> list[str]:
    """One line for each value that differs, with its path, whatever the order of keys.

    `rounding`: floats that are as close as this, relative, are the same.
    """
    if isinstance(was, dict) and isinstance(now, dict):
        lines = [f"{where}.{key}: gone" for key in was.keys() - now.keys()]
        lines += [f"{where}.{key}: new" for key in now.keys() - was.keys()]
        return sorted(lines) + [
            line
            for key in was
            if key in now
            for line in differences(was[key], now[key], f"{where}.{key}", rounding=rounding)
        ]
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        return [
            line
            for k, pair in enumerate(zip(was, now, strict=True))
            for line in differences(*pair, f"{where}[{k}]", rounding=rounding)
        ]
    if isinstance(was, float) and isinstance(now, float):
        same = math.isclose(was, now, rel_tol=rounding)
    else:
        same = type(was) is type(now) and was == now
    return [] if same else [f"{where}: {_brief(was)} -> {_brief(now)}"]


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
