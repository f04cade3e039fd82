"""Whether the ranks of a launch move."""

from __future__ import annotations

import json

import pytest

from scaling.hardware.telemetry import PULSE_SCHEMA, RankPulse
from scaling.records.launch import has_beaten, has_moved, has_started, read_pulse
from scaling.records.paths import RunFolder


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
