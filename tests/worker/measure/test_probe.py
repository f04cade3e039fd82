"""The bucket probe on two real ranks: the same gradients as plain DDP's, stamps in their order."""

from pathlib import Path

import numpy as np
import pytest
from support.gloo_ranks import run_ranks

from scaling.analysis.predict.change import Gradients, bucketed
from scaling.records.format import CollectiveRow

SCRIPT = Path(__file__).with_name("two_ranks.py")


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return run_ranks(SCRIPT, 2, tmp_path_factory.mktemp("ranks") / "store")


@pytest.mark.parametrize("kind", ["host", "device"])
def test_gradients_are_plain_ddp_s(two, kind):
    assert [rank[f"{kind}_close"] for rank in two] == [True, True]


@pytest.mark.parametrize("kind", ["host", "device"])
def test_every_bucket_has_a_row_in_order(two, kind):
    for rank in two:
        rows = rank[kind]["rows"]
        assert len(rank["buckets"]) > 1
        assert [row[3] for row in rows] == rank["buckets"]
        assert [row[0] for row in rows] == list(range(len(rows)))
        assert {row[2] for row in rows} == {2}


def collective(row):
    return CollectiveRow(*row)


def test_ready_launch_done(two):
    for rank in two:
        step = rank["host"]
        for row in map(collective, step["rows"]):
            assert step["forward_end"] <= row.ready_ns <= row.launch_ns < row.done_ns <= step["end"]


def test_on_a_device_a_bucket_is_ready_when_launched(two):
    for rank in two:
        step = rank["device"]
        for row in map(collective, step["rows"]):
            assert step["forward_end"] <= row.ready_ns == row.launch_ns < row.done_ns <= step["end"]


@pytest.mark.parametrize("kind", ["solo_host", "solo_device"])
def test_alone_there_are_ready_times_only(two, kind):
    for rank in two:
        step = rank[kind]
        assert [row[3] for row in step["rows"]] == rank["buckets"]
        ready = [row[4] for row in step["rows"]]
        assert ready == sorted(ready)
        assert step["forward_end"] <= ready[0]
        assert ready[-1] <= step["end"]
        rows = map(collective, step["rows"])
        assert {(row.group, row.launch_ns, row.done_ns) for row in rows} == {(1, 0, 0)}


def test_alone_every_parameter_has_its_bytes_and_when_it_was_ready(two):
    for rank in two:
        parameters, step = rank["solo_host_parameters"], rank["solo_host"]
        assert [size for size, _ in parameters] == [256 * 256 * 4, 256 * 4] * 10
        ready = [step["begin"] + since for _, since in parameters]
        assert step["forward_end"] <= min(ready)
        assert max(ready) == step["rows"][-1][4]
        assert rank["solo_device_parameters"] == []


def test_other_buckets_are_foretold_from_the_parameters_ready_times(two):
    sizes, ready = zip(*two[0]["solo_host_parameters"], strict=True)
    gradients = Gradients(sizes=sizes, ready=np.array([ready], dtype=float))
    for cap, buckets in two[0]["buckets_at"].items():
        assert list(bucketed(gradients, float(cap)).sizes) == buckets


def test_hooks_are_gone_after_the_block(two):
    assert [rank["hooks_left"] for rank in two] == [0, 0]


def test_on_gloo_the_control_group_is_the_data_group(two):
    assert all(rank["same_group"] for rank in two)


def test_an_exchange_alone(two):
    for rank in two:
        (begin, end), rows = rank["exchange"]
        assert [row[3] for row in rows] == [1024, 4096]
        stamps = [begin, rows[0][5], rows[0][6], rows[1][5], rows[1][6], end]
        assert stamps == sorted(stamps)


def test_every_collective_runs_and_says_its_kind_and_bytes(two):
    for rank in two:
        _, rows = rank["collectives"]
        assert [(row[1], row[3]) for row in rows] == [(kind, 4096) for kind in range(4)]
        assert all(row[5] <= row[6] for row in rows)


def test_ranks_wait_for_the_late_one_where_buffers_are_broadcast(two):
    prompt, late = (rank["buffers"]["late"] for rank in two)
    assert len(prompt) == len(late) == 2 * 2  # begin and end in each of two steps
    assert prompt == sorted(prompt)
    for at in (0, 2):
        waited, own = prompt[at + 1] - prompt[at], late[at + 1] - late[at]
        assert waited > 0.08e9  # rank 1 came 0.1 s later
        assert own < waited / 2


def test_only_a_wrapper_of_several_ranks_with_buffers_sends_them(two):
    for rank in two:
        assert rank["buffers"]["sends"] == [True, False, False]
        assert rank["buffers"]["without"] == []  # no_sync: the forward before reduced nothing
        assert rank["buffers"]["put_back"]
