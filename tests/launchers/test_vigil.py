"""The launcher listens to thousands of hosts by reading a few small files a second."""

import json
import sys

import pytest

from scaling.hardware.telemetry import PULSE_SCHEMA
from scaling.launchers import follow as follow_module
from scaling.launchers.follow import HOSTS_A_LOOK, LOOK_S, Vigil

HOSTS, A_HOST = 512, 8


def beat(launch, host, *, beats, at_s=100.0):
    """What the ranks of a host have done so far."""
    rank = {"at_s": at_s, "beats": beats, "cpu_s": 5.0, "io_bytes": 1000}
    ranks = {str(host * A_HOST + k): rank for k in range(A_HOST)}
    launch.pulse(host).write_text(json.dumps({"schema": PULSE_SCHEMA, "ranks": ranks}))


def vigil_of(launch, hosts):
    return Vigil(launch, 0.0, hosts=hosts, timeout_s=60, start_s=300, progress=lambda _: None)


@pytest.fixture
def opened(launch):
    """opened(): which of the launch's files this process has opened or listed since the last call."""
    seen, on = [], [True]

    def hook(event, arguments):
        if on[0] and event in ("open", "os.listdir", "os.scandir") and str(launch.path) in str(arguments[0]):
            seen.append(str(arguments[0]))

    sys.addaudithook(hook)  # it cannot be removed

    def since():
        found, seen[:] = list(seen), []
        return found

    yield since
    on[0] = False


def listening(vigil, begin, looks):
    """Listen for so many looks; how long the launch has been silent then."""
    for k in range(looks):
        vigil.listen(begin + (k + 1) * (LOOK_S + 0.01))
    return vigil.silent_s(begin + looks * (LOOK_S + 0.01))


@pytest.mark.parametrize("hosts", [64, HOSTS])
def test_while_ranks_beat_one_host_is_read_in_a_look_however_many_there_are(launch, opened, hosts):
    vigil = vigil_of(launch, hosts)
    for host in range(hosts):
        beat(launch, host, beats=1)
    listening(vigil, 0.0, looks=hosts // HOSTS_A_LOOK)
    for k in range(3):
        for host in range(hosts):
            beat(launch, host, beats=2 + k)
        opened()
        assert listening(vigil, 100.0 + 2 * k, looks=1) == 0.0
        assert len(opened()) == 2  # what rank 0 reports, and one host's pulse


def test_when_a_host_stops_the_others_are_looked_at_some_at_a_time(launch, opened):
    vigil = vigil_of(launch, HOSTS)
    for host in range(HOSTS):
        beat(launch, host, beats=1)
    listening(vigil, 0.0, looks=HOSTS // HOSTS_A_LOOK)
    beat(launch, HOSTS - 1, beats=2)
    opened()
    silent_s = listening(vigil, 200.0, looks=HOSTS // HOSTS_A_LOOK)
    assert len(opened()) <= (1 + HOSTS_A_LOOK) * HOSTS // HOSTS_A_LOOK
    assert silent_s < 2 * LOOK_S


def test_a_launch_in_which_nobody_beats_becomes_silent(launch):
    vigil = vigil_of(launch, 2)
    for host in range(2):
        beat(launch, host, beats=1)
    assert listening(vigil, 0.0, looks=1) == 0.0
    assert listening(vigil, 2.0, looks=40) > 38 * LOOK_S


def test_ranks_whose_beats_cannot_be_read_are_not_timed_by_them(launch):
    vigil = vigil_of(launch, 2)
    beat(launch, 0, beats=None)
    listening(vigil, 0.0, looks=1)
    blind_s = vigil.patience_s(2.0)
    beat(launch, 0, beats=1)
    listening(vigil, 2.0, looks=1)
    assert vigil.patience_s(4.0) >= blind_s == 300


def test_a_rank_that_failed_is_seen_without_a_list_of_the_folder(launch, opened, monkeypatch):
    monkeypatch.setattr(follow_module, "LINGER_S", 0.0)
    launch.failed.touch()
    command = follow_module.Command(argv=("sleep", "60"), env={})
    limits = type("Limits", (), {"step_timeout_s": 60, "start_timeout_s": 300})
    outcome = follow_module.follow(command, launch, limits, lambda _: None)
    assert outcome.status == "failed"
