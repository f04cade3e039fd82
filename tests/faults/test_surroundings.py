"""What a run stands in fails: links, disk, folder, clock, ports, and the person or system that ends it."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.commands import assert_refusal, command, environment
from support.processes import NO_NAMESPACES, captured, user_namespaces, wait_until

from scaling.launchers.failure import evidence
from scaling.launchers.launcher import END_S
from scaling.records.paths import RunFolder

SHORT_LOCAL = ("topology=local", "topology.device=cpu", "topology.ranks_per_host=2", "model=synthetic")
LONG = ("measure.budget_s=60", "measure.rounds_max=100", "world_sizes=[2]")
TAKES_S = 200
"""More than any of these runs takes: a start, a hang that is noticed, another start, a minute's rounds."""
STOPS_S = 30
"""More than it takes to end a launch in order (8 s) and to report what there is."""

namespaces = pytest.mark.skipif(not user_namespaces(), reason=NO_NAMESPACES)


def rounds(path):
    return json.loads((path / "run/launches/0/progress.json").read_text())["rounds"]


def analysis_of(path):
    return json.loads((path / "run/analysis.json").read_text())


def launches_of(path):
    return json.loads((path / "run/status.json").read_text())["launches"]


def change_rate(path, host, rate_bit_s):
    """What a person would do to a running emulated network (launch/emulated_hosts.py): edit, and SIGHUP."""
    file = path / "run/launches/0/network.json"
    network = json.loads(file.read_text())
    network["hosts"][host]["rate_bit_s"] = rate_bit_s
    file.write_text(json.dumps(network))
    for process in Path("/proc").glob("[0-9]*"):
        words = []
        with contextlib.suppress(OSError):  # it ended meanwhile
            words = (process / "cmdline").read_bytes().split(b"\0")
        if str(file).encode() in words:
            os.kill(int(process.name), signal.SIGHUP)
            return
    raise AssertionError("no emulated_hosts.py runs")


# Interrupted


def workers_of(path):
    return evidence.find(RunFolder(path / "run").launch(0))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_a_local_run_is_ended_in_order(number, driver, tmp_path, left_behind):
    (tmp_path / "scratch").mkdir()
    process = driver(*LONG, env={"TMPDIR": str(tmp_path / "scratch")})
    wait_until(lambda: rounds(tmp_path) >= 1, process, seconds=TAKES_S)
    process.send_signal(number)
    out, err = process.communicate(timeout=STOPS_S)
    assert process.returncode == 3, (out, err)
    assert "Traceback" not in err
    assert left_behind(tmp_path) == []
    assert list((tmp_path / "scratch").iterdir()) == []
    (trial,) = analysis_of(tmp_path)["trials"]
    assert trial["status"] == "interrupted"
    assert trial["error"] == f"interrupted by {'Ctrl-C' if number == signal.SIGINT else number.name}"
    assert analysis_of(tmp_path)["points"][0]["step_ms"]["value"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["| head -1", "2>&-", ">&-", ">&- 2>&-"])
def test_closed_streams_lose_nothing(closed, tmp_path, left_behind):
    run = shlex.join(command(["run", *SHORT_LOCAL, "world_sizes=[2]", "measure=quick", "measure.budget_s=3"]))
    script = f"set -o pipefail; {run} tracking=disabled run_dir=run {closed}"
    done = captured(["bash", "-c", script], cwd=tmp_path, env=environment(), timeout=TAKES_S)
    assert done.returncode in (0, 3), done.stderr  # 3: beside other programs a block may be left out
    assert "Traceback" not in done.stdout + done.stderr
    assert analysis_of(tmp_path)["points"][0]["step_ms"]["value"] > 0
    assert "2 ranks" in (tmp_path / "run/report.txt").read_text()
    assert left_behind(tmp_path) == []


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait_for_a_rank_that_does_not_answer(driver, tmp_path, left_behind):
    process = driver(*LONG)
    wait_until(lambda: rounds(tmp_path) >= 1, process)
    os.kill(workers_of(tmp_path)[0].pid, signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert workers_of(tmp_path)  # the first one waits, for END_S
    process.send_signal(signal.SIGINT)
    wait_until(lambda: not workers_of(tmp_path), seconds=END_S / 2)
    out, err = process.communicate(timeout=STOPS_S)
    assert process.returncode == 3, (out, err)
    assert "Traceback" not in err
    assert left_behind(tmp_path) == []
    assert [trial["status"] for trial in analysis_of(tmp_path)["trials"]] == ["interrupted"]


@pytest.mark.slow
def test_ctrl_c_while_the_report_is_made_says_how_to_have_it(driver, tmp_path, left_behind):
    process = driver(*LONG)
    wait_until(lambda: rounds(tmp_path) >= 1, process)
    process.send_signal(signal.SIGINT)
    status = tmp_path / "run/status.json"
    wait_until(lambda: json.loads(status.read_text())["state"] == "interrupted", process, seconds=STOPS_S)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=STOPS_S)
    assert process.returncode == 3, (out, err)
    assert "`scaling analyze run` reports it" in err
    assert "Traceback" not in err
    assert left_behind(tmp_path) == []


@pytest.mark.slow
def test_a_torchrun_that_is_killed_is_named_and_takes_its_ranks_along(driver, tmp_path, left_behind):
    process = driver("measure.budget_s=10", "world_sizes=[2]")
    wait_until(lambda: rounds(tmp_path) >= 0.2, process, seconds=TAKES_S)
    rank = workers_of(tmp_path)[0].pid
    os.kill(int(Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
    _out, err = process.communicate(timeout=TAKES_S)
    assert process.returncode == 0, err
    first, second = launches_of(tmp_path)
    assert (first["state"], second["state"]) == ("failed", "done")
    assert first["error"].startswith("torchrun was ended by SIGKILL")
    assert left_behind(tmp_path) == []


@pytest.mark.slow
@namespaces
def test_a_torchrun_of_one_host_that_is_killed_is_named_and_no_rank(driver, tmp_path, left_behind):
    process = driver(
        "topology=emulated_pcie", "topology.ranks_per_host=1", "measure.budget_s=40", "world_sizes=[2]"
    )
    wait_until(lambda: rounds(tmp_path) >= 0.2, process, seconds=TAKES_S)
    (rank,) = [worker for worker in workers_of(tmp_path) if worker.rank == 1]
    os.kill(rank.parent, signal.SIGKILL)
    _out, err = process.communicate(timeout=TAKES_S)
    assert process.returncode == 0, err
    first, second = launches_of(tmp_path)
    assert (first["state"], first["rank"], second["state"]) == ("failed", None, "done")
    assert first["error"] == "torchrun on host1 was ended by SIGKILL"
    assert left_behind(tmp_path) == []


# Links

TAKE_DOWN = """
from pyroute2 import IPRoute
with IPRoute() as ip:
    ip.link("set", index=ip.link_lookup(ifname="eth0")[0], state="down")
"""


def cut_off(rank):
    """Take down the link of the emulated host that a rank runs on: no packet comes or goes."""
    entering = ("nsenter", "--target", str(rank.pid), "--user", "--net", "--preserve-credentials")
    subprocess.run([*entering, sys.executable, "-c", TAKE_DOWN], check=True)


@pytest.mark.slow
@namespaces
def test_a_link_that_is_cut_ends_the_launch_and_the_next_one_has_it_back(driver, tmp_path, left_behind):
    process = driver(
        "topology=emulated_pcie", "topology.ranks_per_host=1", "measure.budget_s=40", "world_sizes=[2]"
    )
    wait_until(lambda: rounds(tmp_path) >= 0.2, process, seconds=TAKES_S)
    cut_off(next(worker for worker in workers_of(tmp_path) if worker.rank == 1))
    _out, err = process.communicate(timeout=TAKES_S)
    assert process.returncode == 0, err
    first, second = launches_of(tmp_path)
    assert (first["state"], second["state"]) == ("timeout", "done")
    assert re.search(r"imed out|lost each other|hung", first["error"]), first["error"]
    assert left_behind(tmp_path) == []


@pytest.mark.slow
@namespaces
@pytest.mark.measures
def test_a_link_at_a_tenth_of_its_rate_is_measured_and_said(driver, tmp_path, left_behind):
    process = driver(
        "topology=emulated_pcie",
        "topology.ranks_per_host=1",
        "topology.link.rate=500mbit",
        "model.param_mb=1",
        "measure.fabric_max=256KiB",
        "measure.budget_s=60",
        "measure.rounds_max=12",  # so many that the one in which the rate fell does not widen every interval to 1
        "world_sizes=[2]",
    )
    wait_until(lambda: rounds(tmp_path) >= 0.1, process)
    for host in (0, 1):
        change_rate(tmp_path, host, 50_000_000)
    _out, err = process.communicate(timeout=TAKES_S)
    assert process.returncode == 0, err
    document = analysis_of(tmp_path)
    assert document["points"][0]["comm"]["nominal_share"]["value"] < 0.5
    assert "slow_path" in {verdict["cause"] for verdict in document["verdicts"]}
    assert left_behind(tmp_path) == []


# Disk and folder


@pytest.mark.slow
@namespaces
def test_a_full_disk_ends_the_run_and_keeps_what_was_measured(tmp_path, left_behind):
    """A tmpfs of 1 MiB in a mount namespace of its own, which also holds everything the workers write."""
    script = """
        mount -t tmpfs -o size=1m tmpfs disk || exit 99
        head -c 700k /dev/zero >disk/other-files
        "$@" run_dir=disk/run >out.txt 2>err.txt; echo $? >code.txt
        cp -r disk/run kept
    """
    (tmp_path / "disk").mkdir()
    run = command(["run", *SHORT_LOCAL, "measure=quick", "measure.steps=40"])
    run += ["measure.rounds_max=100", "measure.budget_s=120", "model.compute_ms=1", "tracking=disabled"]
    begin = time.monotonic()
    subprocess.run(
        ["unshare", "-Urm", "sh", "-c", script, "sh", *run],
        cwd=tmp_path,
        env=environment(),
        check=True,
        timeout=TAKES_S,
    )
    assert time.monotonic() - begin < TAKES_S
    err = (tmp_path / "err.txt").read_text()
    assert (tmp_path / "code.txt").read_text().strip() == "3", err
    assert "No space left on device" in err
    assert "Traceback" not in err
    kept = (tmp_path / "kept/launches/0/rank-0.jsonl").read_bytes()
    assert b'"t":"block"' in kept
    assert left_behind(tmp_path) == []


@namespaces
def test_a_disk_that_is_full_from_the_start_is_bad_input(tmp_path):
    script = """
        mount -t tmpfs -o size=4k tmpfs disk || exit 99
        head -c 4k /dev/zero >disk/other-files
        exec "$@" run_dir=disk/run
    """
    (tmp_path / "disk").mkdir()
    done = captured(
        ["unshare", "-Urm", "sh", "-c", script, "sh", *command(["run", *SHORT_LOCAL])],
        cwd=tmp_path,
        env=environment(),
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "scaling: run_dir=disk/run: cannot be made (No space left on device); name a folder that can\n"
    )


@pytest.mark.slow
def test_a_folder_that_is_removed_ends_the_run(driver, tmp_path, left_behind):
    process = driver(*LONG)
    wait_until(lambda: rounds(tmp_path) >= 0.5, process)
    shutil.rmtree(tmp_path / "run")
    _out, err = process.communicate(timeout=TAKES_S)
    assert process.returncode == 1, err
    assert "Traceback" not in err
    assert "removed" in err or "cannot be written" in err
    assert left_behind(tmp_path) == []


@pytest.mark.slow
@namespaces
def test_a_folder_that_becomes_read_only_ends_the_run_and_keeps_what_was_measured(
    driver, tmp_path, left_behind
):
    process = driver(*LONG, prefix=("unshare", "--user"))  # no more rights over files than their owner has
    wait_until(lambda: rounds(tmp_path) >= 0.5, process)
    folders = [tmp_path / "run", *(p for p in (tmp_path / "run").rglob("*") if p.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    _out, err = process.communicate(timeout=TAKES_S)
    for folder in folders:
        folder.chmod(0o755)
    assert process.returncode == 3, err
    assert "Permission denied" in err
    assert "Traceback" not in err
    assert (tmp_path / "run/launches/0/rank-0.jsonl").stat().st_size > 0
    assert left_behind(tmp_path) == []


# Clock and ports

CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long back(void) {
    const char *sign = getenv("CLOCK_SET_BACK");
    return sign != NULL && access(sign, F_OK) == 0 ? 3600 : 0;
}

int clock_gettime(clockid_t id, struct timespec *out) {
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL) real = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(id, out);
    if (status == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) out->tv_sec -= back();
    return status;
}

int gettimeofday(struct timeval *out, void *zone) {
    static int (*real)(struct timeval *, void *);
    if (real == NULL) real = dlsym(RTLD_NEXT, "gettimeofday");
    int status = real(out, zone);
    if (status == 0) out->tv_sec -= back();
    return status;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out != NULL) *out = now.tv_sec;
    return now.tv_sec;
}
"""
"""The C library's time of day, an hour back from when a file is there: for Python, torch and Gloo alike."""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc)")
def test_a_clock_that_is_set_back_changes_nothing(driver, tmp_path):
    library, sign = tmp_path / "clock.so", tmp_path / "set-back"
    (tmp_path / "clock.c").write_text(CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "clock.c", "-ldl"], check=True)
    process = driver(
        "measure.budget_s=10",
        "world_sizes=[2]",
        env={"LD_PRELOAD": str(library), "CLOCK_SET_BACK": str(sign)},
    )
    wait_until(lambda: rounds(tmp_path) >= 0.2, process, seconds=TAKES_S)
    sign.touch()
    told = "import time; print(time.time(), time.clock_gettime(time.CLOCK_REALTIME))"
    seen = captured(
        [sys.executable, "-c", told],
        env={**os.environ, "LD_PRELOAD": str(library), "CLOCK_SET_BACK": str(sign)},
        check=True,
    )
    assert all(time.time() - 3700 < float(now) < time.time() - 3500 for now in seen.stdout.split())
    _out, err = process.communicate(timeout=TAKES_S)
    assert process.returncode == 0, err
    document = analysis_of(tmp_path)
    assert 0 < document["run"]["duration_s"] < TAKES_S
    records = [json.loads(x) for x in (tmp_path / "run/launches/0/rank-1.jsonl").read_text().splitlines()]
    blocks = [record for record in records if record["t"] == "block"]
    assert all(0 < block["end_ns"] - block["begin_ns"] < TAKES_S * 1e9 for block in blocks)
    assert document["points"][0]["step_ms"]["value"] < 1000


@pytest.mark.slow
def test_a_port_that_is_taken_is_not_needed(driver, tmp_path):
    """torchrun's usual port, and the one in the environment, belong to another program."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with socket.socket() as usual:
            usual.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):  # another program has it already, which serves as well
                usual.bind(("127.0.0.1", 29500))
            port = str(taken.getsockname()[1])
            process = driver("world_sizes=[2]", env={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
            _out, err = process.communicate(timeout=TAKES_S)
    assert process.returncode == 0, err
    assert [launch["state"] for launch in launches_of(tmp_path)] == ["done"]


# Two at once


@pytest.mark.slow
def test_of_two_runs_in_one_folder_the_second_is_refused(driver, tmp_path):
    first = driver(*LONG)
    wait_until((tmp_path / "run/launches/0/progress.json").exists, first)
    before = (tmp_path / "run/plan.json").read_bytes()
    second = driver("world_sizes=[2]")
    out, err = second.communicate(timeout=60)
    assert_refusal(second.returncode, out, err, "already holds a run")
    assert (tmp_path / "run/plan.json").read_bytes() == before
    first.terminate()
    first.communicate(timeout=60)


@pytest.mark.slow
def test_of_two_runs_that_start_at_once_one_measures(driver, tmp_path):
    both = [driver("world_sizes=[2]") for _ in range(2)]
    ends = [(p.communicate(timeout=TAKES_S), p.returncode) for p in both]
    assert sorted(code for _, code in ends) == [0, 2], ends
    assert len(launches_of(tmp_path)) == 1
