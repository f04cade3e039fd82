"""Many real ranks on one machine (Gloo). Compute is sleep, since they share its cores."""

import json
import os
import signal
from pathlib import Path

import polars as pl
import pytest
from support.commands import start_scaling
from support.processes import wait_until
from support.tables import checked

from scaling.records.paths import RunFolder

RANKS, KILLED = 64, 37
ARMS = ("bare_all", "ddp_solo", "plain", "probe", "fabric")
START_S, END_S, STOP_S = 300, 600, 60
"""Until it measures, until it has ended after a rank was killed, and until it has stopped if it does not."""
RUN = (
    *(
        "topology=local",
        "topology.device=cpu",
        f"topology.ranks_per_host={RANKS}",
        f"world_sizes=[1,{RANKS}]",
    ),
    *("model=synthetic", "model.param_mb=2", "model.compute_ms=100"),
    *("measure=quick", "measure.budget_s=120", "tracking=disabled", "run_dir=run"),
)


def worker(run, rank):
    """The process of a rank."""
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes()
            told = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"scaling.worker" in words and str(run).encode() in words and f"RANK={rank}".encode() in told:
            return int(process.name)
    return None


@pytest.mark.slow
@pytest.mark.alone
def test_what_many_ranks_wrote_before_one_was_killed_is_used(tmp_path, left_behind):
    process = start_scaling("run", *RUN, cwd=tmp_path)
    try:
        progress = tmp_path / "run/launches/0/progress.json"
        wait_until(
            lambda: progress.exists() and json.loads(progress.read_text())["rounds"] >= 1.2,
            process,
            seconds=START_S,
        )
        os.kill(worker(tmp_path / "run", KILLED), signal.SIGKILL)
        _, err = process.communicate(timeout=END_S)
    finally:
        if process.poll() is None:  # it ends its ranks
            process.terminate()
            process.communicate(timeout=STOP_S)
    assert process.returncode in (0, 3), err
    assert left_behind(tmp_path) == []
    folder = RunFolder(tmp_path / "run")
    tables = checked(folder)
    written = {}
    for rank in range(RANKS):
        lines = map(json.loads, folder.launch(0).rank(rank).read_text().splitlines()[:-1])
        for line in lines:
            if line["t"] == "block" and line["world_size"] == RANKS and line["arm"] != "bare_one":
                written.setdefault((line["id"], line["round"], line["arm"]), set()).add(rank)
    whole = {block for block, ranks in written.items() if len(ranks) == RANKS}
    assert {arm for _, number, arm in whole if number == 0} >= set(ARMS)
    assert {number for _, number, _ in whole} >= {0, 1}
    used = tables.blocks.filter((pl.col("launch") == 0) & (pl.col("world_size") == RANKS))
    assert {block for block, _, _ in whole} <= set(used["block"])
    point = json.loads(folder.analysis.read_text())["points"][-1]
    assert point["world_size"] == RANKS
    assert point["step_ms"]["value"] >= 100
