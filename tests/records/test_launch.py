"""A launch's folder is read by one reader: typed, each file once, and without what is missing or damaged.

Whether the ranks of a launch move.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.processes import captured
from support.simulated_machines import write_machines

from scaling.cli.pipeline import rebuild
from scaling.hardware.telemetry import PULSE_SCHEMA, RankPulse
from scaling.records.files import add_line
from scaling.records.launch import Launch, Launches, described, has_beaten, has_moved, has_started, read_pulse
from scaling.records.paths import RunFolder
from scaling.records.run import read_plan

OPENED: list[Counter[str]] = []
"""Counters of the files that are opened; the hook stays for the process, since none can be taken out again."""


def _count(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and OPENED and isinstance(arguments[0], str | Path):
        OPENED[-1][str(arguments[0])] += 1


sys.addaudithook(_count)


@pytest.fixture
def opened():
    """How often each file was opened in this test."""
    OPENED.append(Counter())
    yield OPENED[-1]
    OPENED.pop()


@pytest.fixture
def folder(tmp_path):
    """A run whose launches 0 and 1 are there, empty."""
    run = RunFolder(tmp_path)
    for index in range(2):
        run.launch(index).path.mkdir(parents=True)
    return run


def launches(folder, ranks=2):
    return Launches(folder, SimpleNamespace(ranks=ranks, hosts=1))


def write(path, **values):
    path.write_text(json.dumps(values))


def test_a_rebuild_opens_each_file_of_a_launch_once(cluster, simulate, tmp_path, opened):
    folder = RunFolder(tmp_path / "run")
    simulate(cluster.Truth(world_sizes=(1, 2), hosts=2, rounds=3, channels=1), folder.path)
    write_machines(folder, read_plan(folder))
    opened.clear()
    rebuild(folder)
    counts = {Path(path).name: n for path, n in opened.items() if path.startswith(str(folder.launch(0).path))}
    kinds = ("rank-{}.jsonl", "memories-{}.jsonl", "telemetry-{}.jsonl")
    there = {"env-0.json", "envs-1.jsonl", *(kind.format(k) for kind in kinds for k in range(2))}
    assert {name: counts.get(name) for name in there} == dict.fromkeys(there, 1)
    assert set(counts.values()) == {1}


def test_variables_are_facts_of_a_rank(folder):
    write(folder.launch(0).envs(0), schema=1, rank=1, host=0, cpu="C1", environment={"NCCL_ALGO": "Ring"})
    (launch, _) = launches(folder)
    assert launch.environments.keys() == {1}
    assert launch.facts[1] == {"host": 0, "cpu": "C1", "env.NCCL_ALGO": "Ring"}
    assert launch.environments[1].processor == "C1"


def test_a_host_s_ranks_share_two_files(folder):
    """Rank 0 stands for the run, in a file of its own; a line that is cut off is another rank's loss alone."""
    launch = folder.launch(0)
    write(launch.env(0), cpu="C0")
    for rank in (3, 1, 2):
        add_line(launch.envs(rank // 2), {"rank": rank, "host": rank // 2, "cpu": f"C{rank}"})
    for rank in range(4):
        add_line(launch.memories(rank // 2), {"rank": rank, "world_sizes": {"4": {"peak_bytes": 100 + rank}}})
    assert described(launch, 0) == described(launch, 1) == 2
    with launch.memories(1).open("a") as file:
        file.write('{"rank": 3, "wor')
    found = Launch(launch, SimpleNamespace(ranks=4, hosts=2))
    assert {rank: one.cpu for rank, one in found.environments.items()} == {k: f"C{k}" for k in range(4)}
    assert [memory.strategies[0][4]["peak_bytes"] for memory in found.memories] == [100, 101, 102, 103]


def test_processes_of_a_host_write_whole_lines(tmp_path):
    """At the same time, without a lock, longer than a buffer of Python's."""
    path, text = tmp_path / "envs-0.jsonl", "x" * 20_000
    with ProcessPoolExecutor(8) as pool:
        list(pool.map(add_line, [path] * 400, [{"rank": k, "text": text} for k in range(400)]))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(line["rank"] for line in lines) == list(range(400))


def test_a_line_that_the_disk_takes_in_part_is_an_error(tmp_path):
    path = tmp_path / "envs-0.jsonl"
    program = (
        "import pathlib, resource, signal, sys; from scaling.records.files import add_line; "
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); "
        "add_line(pathlib.Path(sys.argv[1]), 'x' * 200)"
    )
    done = captured([sys.executable, "-c", program, str(path)])
    assert "OSError: [Errno 28] No space left on device" in done.stderr


@pytest.mark.parametrize("text", ["", "[]", "{", "null"])
def test_a_file_that_is_damaged_is_left_out(folder, text):
    launch = folder.launch(0)
    for path in (launch.env(0), launch.memories(0), launch.check(0), launch.roofline(0), launch.cases):
        path.write_text(text)
    found = Launch(launch, SimpleNamespace(ranks=1, hosts=1))
    assert (found.environments, found.memories, found.checks) == ({}, (), ())
    assert (found.roofline, found.outcomes) == (None, ())


@pytest.mark.parametrize(
    "sizes", [None, [], {"all": {"peak_bytes": 5}}, {"2": 5}, {"2": {"peak_bytes": None}}]
)
def test_memory_without_numbers_is_empty(folder, sizes):
    write(folder.launch(0).memories(0), rank=0, world_sizes=sizes)
    (memory,) = launches(folder).memories
    assert (memory.strategies, memory.device_clock_bound_ns) == (({},), None)


def test_the_last_launch_that_was_described_stands_for_the_run(folder):
    write(folder.launch(0).env(0), cpu="C1")
    assert launches(folder).environment.cpu == "C1"
    write(folder.launch(1).env(0), cpu="C2")
    assert launches(folder).environment.cpu == "C2"


def test_a_new_reader_sees_what_was_written_since(folder):
    found = launches(folder)
    assert found.environment is None
    write(folder.launch(1).env(0), cpu="C1")
    assert found.environment is None, "what was read is kept"
    assert launches(folder).environment.cpu == "C1"


def pulse(*, at_s=100.0, beats=7, cpu_s=5.0, io_bytes=1000):
    return {"1": RankPulse(at_s=at_s, beats=beats, cpu_s=cpu_s, io_bytes=io_bytes)}


@pytest.mark.parametrize(
    ("more", "moves"),
    [
        ({}, False),
        ({"cpu_s": 5.01}, False),  # it looks whether it is its turn
        ({"cpu_s": 5.5}, True),
        ({"io_bytes": 1500}, False),
        ({"io_bytes": 1 << 20}, True),
        ({"cpu_s": 4.0, "io_bytes": 0}, False),  # a data worker ended, and took its share along
    ],
)
def test_a_rank_moves_that_uses_the_processor_or_moves_data(more, moves):
    assert has_moved(pulse(), pulse(at_s=102.0, **more)) is moves
    assert not has_beaten(pulse(), pulse(at_s=102.0, **more))


def test_a_beat_is_a_step_and_a_rank_starts_when_it_is_first_seen():
    assert has_beaten(pulse(), pulse(beats=8))
    assert has_started({}, pulse())
    assert not has_beaten({}, pulse())
    assert not has_started(pulse(), pulse(beats=8))
    assert not has_moved({}, pulse())


def test_a_host_s_file_is_read_and_a_damaged_one_left_out(tmp_path):
    launch = RunFolder(tmp_path).launch(0)
    launch.path.mkdir(parents=True)
    rank = {"at_s": 1.0, "beats": None, "cpu_s": 2.0, "io_bytes": 3}
    launch.pulse(0).write_text(json.dumps({"schema": PULSE_SCHEMA, "ranks": {"0": rank, "1": rank}}))
    launch.pulse(1).write_text(json.dumps({"schema": PULSE_SCHEMA, "ranks": {"2": rank}}))
    launch.pulse(2).write_text('{"schema": 1, "ranks": {"3"')
    launch.pulse(3).write_text(json.dumps({"schema": PULSE_SCHEMA, "ranks": [4]}))
    launch.pulse(4).write_text(json.dumps({"schema": PULSE_SCHEMA + 1, "ranks": {"5": rank}}))
    assert [sorted(read_pulse(launch, host)) for host in range(6)] == [["0", "1"], ["2"], [], [], [], []]
    assert read_pulse(launch, 1)["2"] == RankPulse(at_s=1.0, beats=None, cpu_s=2.0, io_bytes=3)
