"""Files of other tools that were changed by accident: none crashes or hangs, none moves a figure without a word.

`SCALING_MUTATIONS=2000 pytest tests/faults/test_trace_mutations.py -s` makes 2,000 changes of each kind of file.
"""

import contextlib
import io
import os
import random
import time

import pytest
from support import dumps
from support.traces import Trace

from scaling.errors import ScalingError
from scaling.traces.inspector import inspector
from scaling.traces.machines.imported import import_log
from scaling.traces.profiler.read import read_all
from scaling.traces.profiler.summary import analyse

COUNT = int(os.environ.get("SCALING_MUTATIONS", "80"))
MOVED = 0.2
SECONDS = 10


def digit(data, chosen):
    at = [k for k, byte in enumerate(data) if chr(byte).isdigit()]
    k = chosen.choice(at)
    return data[:k] + str(chosen.randrange(10)).encode() + data[k + 1 :]


def byte(data, chosen):
    k = chosen.randrange(len(data))
    return data[:k] + bytes([chosen.randrange(256)]) + data[k + 1 :]


def cut(data, chosen):
    return data[: chosen.randrange(len(data))]


def hole(data, chosen):
    k = chosen.randrange(len(data))
    return data[:k] + data[k + chosen.randrange(1, 200) :]


def twice(data, chosen):
    k = chosen.randrange(len(data))
    return data[:k] + data[max(0, k - chosen.randrange(1, 200)) :]


def junk(data, chosen):
    k = chosen.randrange(len(data))
    return (
        data[:k]
        + chosen.choice((b"\0" * 9, b"[" * 200, b"9" * 400, b"\xff\xfe", b"NaN", b"-", b"1e999", b"\n{"))
        + data[k:]
    )


def line(data, chosen):
    lines = data.splitlines(keepends=True)
    k = chosen.randrange(len(lines))
    return b"".join(lines[:k] + lines[k + 1 :])


CHANGES = (digit, digit, byte, cut, hole, twice, junk, line)


class Inspector:
    def __init__(self, folder):
        self.files = []
        for rank in range(4):
            made = []
            for sn in range(20):
                made.append(dumps.record(rank, sn, (400 if rank == 1 else 500) + sn))
                made.append(dumps.record(rank, 100 + sn, 900 + sn, size=1 << 22, coll="ReduceScatter"))
            self.files.append(dumps.write_records(folder / f"host-pid{rank}.log", made))

    def read(self):
        found = inspector(self.files, None).document
        figures = {}
        for row in found["collectives"]:
            if row["count"] > 10:
                name = f"{row['collective']} of {row['bytes']}"
                figures[f"transfer of {name}"] = row["transfer_us"]["value"]
                figures[f"busbw of {name}"] = row["busbw_gbit_s"]["value"]
        return figures, set(found["warnings"])


class NcclTests:
    def __init__(self, folder):
        rows = []
        for k in range(12, 30):
            m, us = 1 << k, 20 + (1 << k) / 1e5
            half = f"{us:8.2f} {m / us / 1e3:7.2f} {1.75 * m / us / 1e3:7.2f}      0"
            rows.append(
                (m, f"{m:>12} {m // 4:>13}     float     sum      -1 {half} {half}", 1.75 * m / us / 1e3)
            )
        who = [f"#  Rank  {r} Group  0 Pid  {100 + r} on a device  {r} [0x0{r}] NVIDIA X" for r in range(8)]
        text = "\n".join(
            [
                "# nThread 1 nGpus 1 minBytes 4096 maxBytes 536870912",
                "# Using devices",
                *who,
                "#                            out-of-place                       in-place",
                *(row for _, row, _ in rows),
                f"# Avg bus bandwidth    : {sum(b for _, _, b in rows) / len(rows):.4f}",
            ]
        )
        folder.mkdir(parents=True, exist_ok=True)
        self.files = [folder / "all_reduce.log"]
        self.files[0].write_text(text + "\n")

    def read(self):
        text = self.files[0].read_bytes().decode("utf-8", "replace")
        found = import_log(text, self.files[0].name, "x")
        (section, *more) = found.document["sections"]
        figures = {"ranks": section["world_size"] or 0, "best": max(r["busbw_gb_s"] for r in section["rows"])}
        figures["sections"] = 1 + len(more)
        words = ("# note", "# cliff", "# CORRUPT", "# average", "# ranks", "# fit", "# collective")
        return figures, {one for one in found.lines if one.startswith(words)}


class Kineto:
    """A changed time of an event cannot be told from a measured one, so only what is printed has to be possible."""

    def __init__(self, folder):
        self.files = []
        for rank in range(2):
            made = Trace(rank)
            for k in range(4):
                at = 1000 + 100 * k
                made.step(k, at - 5, 99)
                made.kernel("gemm", at, 40, launched=at - 4)
                made.all_reduce(at + 40, 40, launched=at + 30)
            self.files.append(made.write(folder / f"rank-{rank}.json"))

    def read(self):
        found, problems = read_all(self.files)
        if not found:
            raise ScalingError(str(problems[0].why))
        analysis = analyse(found, problems)[0]
        assert all(p.step_ms is None or p.step_ms.value > 0 for p in analysis.points)
        return {}, set(analysis.quality.warnings)


KINDS = {"NCCL Inspector": Inspector, "nccl-tests": NcclTests, "profiler trace": Kineto}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_changed_files_are_read_refused_or_said(kind, tmp_path, capsys):
    subject = KINDS[kind](tmp_path)
    whole, known = subject.read()
    outcomes, unsaid, longest = {}, [], 0.0
    for seed in range(COUNT):
        chosen = random.Random(seed)
        path, change = chosen.choice(subject.files), CHANGES[seed % len(CHANGES)]
        before = path.read_bytes()
        path.write_bytes(change(before, chosen))
        begin = time.process_time()
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                figures, said = subject.read()
        except ScalingError as error:
            outcome = "refused"
            if "\n" in str(error):
                raise AssertionError(f"{seed} {change.__name__}: {error}") from error
        else:
            moved = [n for n, v in whole.items() if n not in figures or abs(figures[n] - v) > MOVED * abs(v)]
            outcome = ("moved" if moved else "not moved") + (", said" if said != known else ", not said")
            if moved and said == known:
                unsaid.append(f"{seed} {change.__name__} in {path.name}: {', '.join(moved)}")
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        longest = max(longest, time.process_time() - begin)
        path.write_bytes(before)
    with capsys.disabled():
        print(f"\n{kind}: {COUNT} changes: {dict(sorted(outcomes.items()))}; longest {longest:.2f} s")
        print("\n".join(unsaid[:20]))
    assert unsaid == []
    assert longest < SECONDS
    assert subject.read() == (whole, known)
