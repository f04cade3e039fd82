"""The sampler as a process: it samples, it ends when it is told, and it does not outlive its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from scaling.telemetry.records import read
from scaling.worker.sampler import sampling

ROOT = Path(__file__).parents[2]


class Folder:
    def __init__(self, path):
        self.path = path

    def telemetry(self, host):
        return self.path / f"telemetry-{host}.jsonl"


def wait_for(what, seconds=30):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


def lines(path):
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_it_samples_while_the_launch_runs_and_ends_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr("scaling.worker.sampler.PERIOD_S", 0.05)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    folder = Folder(tmp_path)
    with sampling(folder, 3, first_on_host=True):
        wait_for(lambda: lines(folder.telemetry(3)) >= 3)
    record = read(folder.telemetry(3))
    assert record.host == 3
    assert len(record.samples) >= 2
    assert record.samples[0].time_ns < record.samples[1].time_ns
    assert record.gpus == record.samples[0].gpus == ()


def test_one_rank_a_host_is_enough(tmp_path):
    with sampling(Folder(tmp_path), 0, first_on_host=False):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_parent_that_is_killed_takes_it_along(tmp_path):
    file = tmp_path / "t.jsonl"
    code = (
        "import os, subprocess, sys, time\n"
        f"arguments = [{str(file)!r}, '0', '0.05', str(os.getpid())]\n"
        "p = subprocess.Popen([sys.executable, '-m', 'scaling.telemetry', *arguments])\n"
        "print(p.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    )
    child = int(parent.stdout.readline())
    wait_for(lambda: lines(file) >= 2)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: not alive(child))


def alive(pid):
    try:
        return "Z" not in (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False


def test_a_file_that_was_cut_off_is_read_up_to_there(tmp_path):
    file = tmp_path / "t.jsonl"
    head = '{"t":"head","schema":1,"host":0,"hostname":"h","gpus":[],"nics":[],"nodes":{},"acs_bridges":null}'
    sample = '{"t":"sample","time_ns":5,"gpus":[],"system":{}}'
    file.write_text(f"{head}\n{sample}\n{sample[:20]}")
    assert [s.time_ns for s in read(file).samples] == [5]
    assert read(tmp_path / "none.jsonl") is None
    file.write_text(head.replace('"schema":1', '"schema":9'))
    assert read(file) is None


def test_told_again_and_again_while_it_ends_it_ends_in_order(tmp_path):
    """A parent says so and dies: the second SIGTERM meets a sampler that is ending already."""
    running = []
    for index in range(8):
        arguments = [str(tmp_path / f"{index}.jsonl"), "0", "0.05", str(os.getpid())]
        running.append(subprocess.Popen([sys.executable, "-m", "scaling.telemetry", *arguments], cwd=ROOT))
    try:
        for index, process in enumerate(running):
            wait_for(lambda path=tmp_path / f"{index}.jsonl": lines(path) >= 2)
            for _ in range(500):
                process.send_signal(signal.SIGTERM)
        assert [process.wait(timeout=20) for process in running] == [0] * len(running)
    finally:
        for process in running:
            process.kill()
