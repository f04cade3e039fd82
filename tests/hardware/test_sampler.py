"""The sampler as a process: it samples, it ends when it is told, and it does not outlive its parent."""

import json
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from support.commands import start_python
from support.processes import alive, wait_until

from scaling.hardware.sampler import SAMPLES
from scaling.hardware.telemetry import read
from scaling.worker.session.progress import sampling

ROOT = Path(__file__).parents[2]


class Folder:
    def __init__(self, path):
        self.path = path

    def telemetry(self, host):
        return self.path / f"telemetry-{host}.jsonl"

    def pulse(self, host):
        return self.path / f"pulse-{host}.json"


def lines(path):
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_it_samples_while_the_launch_runs_and_ends_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr("scaling.worker.session.progress.PERIOD_S", 0.05)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    folder = Folder(tmp_path)
    with sampling(folder, 3, first_on_host=True):
        wait_until(lambda: lines(folder.telemetry(3)) >= 3)
    record = read(folder.telemetry(3))
    assert record.host == 3
    assert len(record.samples) >= 2
    assert record.samples[0].time_ns < record.samples[1].time_ns
    assert record.gpus == record.samples[0].gpus == ()


def test_an_own_loop_is_sampled_ever_more_rarely_and_leaves_no_pulse(tmp_path, monkeypatch):
    monkeypatch.setattr("scaling.worker.session.progress.PERIOD_S", 0.001)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    folder = Folder(tmp_path)
    with sampling(folder, 0, first_on_host=True, own_loop=True):
        wait_until(lambda: lines(folder.telemetry(0)) >= 300)
    assert not folder.pulse(0).exists()
    at = [sample.time_ns for sample in read(folder.telemetry(0)).samples]
    assert min(late - early for early, late in pairwise(at[200:])) > (at[200] - at[0]) / SAMPLES / 2


def test_only_the_first_rank_of_a_host_samples(tmp_path):
    with sampling(Folder(tmp_path), 0, first_on_host=False):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_parent_that_is_killed_takes_it_along(tmp_path):
    file = tmp_path / "t.jsonl"
    code = (
        "import os, subprocess, sys, time\n"
        f"arguments = [{str(file)!r}, {str(file) + '.pulse'!r}, '0', '0.05', str(os.getpid()), 'beats']\n"
        "p = subprocess.Popen([sys.executable, '-m', 'scaling.hardware.sampler', *arguments])\n"
        "print(p.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = start_python("-c", code, stderr=None)
    child = int(parent.stdout.readline())
    wait_until(lambda: lines(file) >= 2)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not alive(child))


def test_a_file_that_was_cut_off_is_read_up_to_there(tmp_path):
    file = tmp_path / "t.jsonl"
    head = '{"t":"head","schema":1,"host":0,"hostname":"h","gpus":[],"nics":[],"nodes":{},"acs_bridges":null}'
    sample = '{"t":"sample","time_ns":5,"gpus":[],"system":{}}'
    file.write_text(f"{head}\n{sample}\n{sample[:20]}")
    assert [s.time_ns for s in read(file).samples] == [5]
    assert read(tmp_path / "none.jsonl") is None
    file.write_text(head.replace('"schema":1', '"schema":9'))
    assert read(file) is None


def test_more_sigterms_while_it_ends_do_no_harm(tmp_path):
    """A parent sends SIGTERM and dies, which sends another one to a sampler that is already ending."""
    running = []
    for index in range(8):
        files = [str(tmp_path / f"{index}.jsonl"), str(tmp_path / f"pulse-{index}.json")]
        arguments = [*files, "0", "0.05", str(os.getpid()), "beats"]
        running.append(
            subprocess.Popen([sys.executable, "-m", "scaling.hardware.sampler", *arguments], cwd=ROOT)
        )
    try:
        for index, process in enumerate(running):
            wait_until(lambda path=tmp_path / f"{index}.jsonl": lines(path) >= 2)
            for _ in range(500):
                process.send_signal(signal.SIGTERM)
        assert [process.wait(timeout=20) for process in running] == [0] * len(running)
    finally:
        for process in running:
            process.kill()


HEAD = {
    "t": "head",
    "schema": 1,
    "host": 0,
    "hostname": "a",
    "gpus": [],
    "nics": [],
    "nodes": {},
    "acs_bridges": None,
}
SAMPLE = {
    "t": "sample",
    "time_ns": 1,
    "gpus": [{"power_mw": 5}],
    "system": {"cpu_mhz": 2, "pressure_ns": {"cpu": 1}},
}


@pytest.mark.parametrize(
    "head", [[1, 2], {"schema": 1}, {**HEAD, "host": "x"}, {**HEAD, "gpus": [1]}, {**HEAD, "nodes": []}]
)
def test_the_file_of_another_program_counts_as_missing(tmp_path, head):
    (tmp_path / "telemetry-0.jsonl").write_text(f"{json.dumps(head)}\n{json.dumps(SAMPLE)}\n")
    assert read(tmp_path / "telemetry-0.jsonl") is None


@pytest.mark.parametrize(
    "odd",
    [
        [],
        {**SAMPLE, "time_ns": "now"},
        {**SAMPLE, "time_ns": 2**63},
        {**SAMPLE, "gpus": [{"power_mw": "much"}]},
        {**SAMPLE, "system": {"cpu_mhz": {}}},
        {**SAMPLE, "system": {"pressure_ns": 5}},
    ],
)
def test_samples_end_at_one_that_is_none(tmp_path, odd):
    lines = [HEAD, SAMPLE, odd, SAMPLE]
    (tmp_path / "telemetry-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [s.time_ns for s in read(tmp_path / "telemetry-0.jsonl").samples] == [1]
