"""The simulator itself, against closed forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import rank_files

from scaling.records import files
from scaling.records import format as records
from scaling.records import paths as store
from scaling.records.paths import find_run
from scaling.settings import plan as planning
from scaling.settings import schedule

MS = 1e6
COMPUTE_MS = 40.0  # of the cases below: 1 + 12 + 24 + 2 + 1


@pytest.fixture
def truth(cluster):
    """Two or four equal ranks, nothing random, nothing but compute and a link."""
    return cluster.Truth(neighbours=1.0, ddp_ns=0.0, overlap=1.0, probe_light_ns=0.0).without_noise()


@pytest.fixture
def point(cluster):
    """What is expected at one world size, without writing anything."""

    def expect(truth, world_size):
        batch = truth.batch // world_size if truth.mode == "strong" else truth.batch
        trial = planning.Trial(world_size=world_size, hosts=world_size, batch=batch)
        return cluster.expect(truth, trial)

    return expect


def one_bucket(cluster, truth, at, size=2**23):
    return replace(truth, buckets=(cluster.Bucket(bytes=size, at=at),))


def lines_of(path, rank):
    return rank_files.read(store.RunFolder(path).launch(0).rank(rank))


def mean_step_ns(path, rank, arm, world_size):
    lines = lines_of(path, rank)
    blocks = [x for x in lines if x["t"] == "block" and (x["arm"], x["world_size"]) == (arm, world_size)]
    whole = max(x["batch"] for x in blocks)  # bare_one runs half of it as well
    ids = {x["id"] for x in blocks if x["batch"] == whole}
    return np.mean([x["s"][1] - x["s"][0] for x in lines if x["t"] == "step" and x["b"] in ids])


# Steps


@pytest.mark.parametrize("n", [2, 4])
def test_a_bucket_at_the_end_is_wholly_exposed(cluster, truth, point, n):
    found = point(one_bucket(cluster, truth, at=1.0), n)
    transfer = 2 * (n - 1) * (truth.alpha_ns + 2**23 * truth.beta_ns / n)
    assert found.step_ns["plain"] == pytest.approx(COMPUTE_MS * MS + transfer)
    assert found.parts_ns["exposed_transfer"] == pytest.approx(transfer)
    assert found.hidden_share == pytest.approx(0.0)
    assert found.busbw_gbit_s == pytest.approx(2 * (n - 1) / n * 2**23 * 8 / transfer)
    assert found.efficiency == pytest.approx(COMPUTE_MS * MS / (COMPUTE_MS * MS + transfer))
    latency = 2 * (n - 1) * truth.alpha_ns
    assert found.loss["link_latency"] * found.step_ns["plain"] == pytest.approx(latency)
    assert found.loss["link_bandwidth"] * found.step_ns["plain"] == pytest.approx(transfer - latency)


def test_an_early_bucket_is_wholly_hidden(cluster, truth, point):
    found = point(one_bucket(cluster, truth, at=0.1), 2)
    assert found.step_ns["plain"] == pytest.approx(COMPUTE_MS * MS)
    assert found.hidden_share == pytest.approx(1.0)
    assert found.efficiency == pytest.approx(1.0)
    assert found.parts_ns["exposed_transfer"] == found.parts_ns["exposed_skew"] == 0


def test_a_bucket_is_exposed_by_what_outlasts_backward(cluster, truth, point):
    found = point(one_bucket(cluster, truth, at=0.75), 2)
    transfer = 2 * (truth.alpha_ns + 2**23 * truth.beta_ns / 2)
    assert found.parts_ns["exposed_transfer"] == pytest.approx(transfer - 0.25 * truth.backward_ns)
    assert found.hidden_share == pytest.approx(0.25 * truth.backward_ns / transfer)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("phase", ["input", "forward", "optimizer", "host"])
def test_a_straggler_costs_its_delay_and_peers_wait_for_it(cluster, truth, point, phase, channels):
    late = cluster.Straggler(rank=1, extra_ns=30 * MS, phase=phase)
    clean, found = (point(replace(truth, channels=channels, stragglers=s), 4) for s in ((), (late,)))
    assert found.cost_ns == {1: pytest.approx(30 * MS)}
    assert found.late == (1,)
    assert found.loss["straggler"] * found.step_ns["plain"] == pytest.approx(30 * MS)
    # Peers wait so much longer; in part for transfer that their own backward compute hid before.
    waited = sum(found.parts_ns[p] - clean.parts_ns[p] for p in ("exposed_transfer", "exposed_skew"))
    assert waited == pytest.approx(30 * MS)
    assert found.parts_ns["exposed_transfer"] > clean.parts_ns["exposed_transfer"]
    single = point(one_bucket(cluster, replace(truth, stragglers=(late,)), at=1.0), 4)
    assert single.parts_ns["exposed_skew"] == pytest.approx(30 * MS)
    assert single.parts_all_ns["exposed_skew"] == pytest.approx(30 * MS * 3 / 4)


def test_a_straggler_within_anothers_delay_costs_nothing_by_itself(cluster, truth, point):
    extras = (cluster.Straggler(rank=1, extra_ns=30 * MS), cluster.Straggler(rank=2, extra_ns=20 * MS))
    found = point(replace(truth, stragglers=extras), 4)
    assert found.cost_ns == {1: pytest.approx(10 * MS), 2: pytest.approx(0, abs=1)}
    assert found.late == (1, 2)
    assert found.late_cost_ns == pytest.approx(30 * MS)


def test_a_fault_of_all_ranks_makes_none_of_them_late(cluster, truth, point):
    extras = tuple(cluster.Straggler(rank=r, extra_ns=5 * MS, phase="input") for r in range(2))
    found = point(replace(truth, stragglers=extras), 2)
    assert found.late == ()
    assert found.loss["input"] * found.step_ns["plain"] == pytest.approx(5 * MS)


@pytest.mark.parametrize("alone", [False, True])
def test_a_rank_slow_by_itself_is_slow_in_bare_one_too(cluster, truth, alone):
    slow = replace(truth, stragglers=(cluster.Straggler(rank=1, extra_ns=7 * MS, alone=alone),))
    trial = planning.Trial(world_size=2, hosts=2, batch=slow.batch)
    block = schedule.Block(id=0, round=0, trial=trial, arm=schedule.BARE_ONE, solo_rank=1)
    own = cluster.compute_ns(slow, block, np.arange(2)).sum(axis=0)
    assert own[1] - own[0] == (7 * MS if alone else 0)


def test_equal_ranks_have_no_skew(truth, point):
    for n in (2, 4):
        assert point(truth, n).parts_ns["exposed_skew"] == pytest.approx(0, abs=1)


@pytest.mark.parametrize("mode", ["weak", "strong"])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_the_loss_adds_up_and_leaves_nothing_unexplained(cluster, point, mode, n):
    late = cluster.Straggler(rank=1, extra_ns=10 * MS)
    found = point(cluster.Truth(mode=mode, stragglers=(late,)).without_noise(), n)
    assert sum(found.loss.values()) == pytest.approx(1 - found.efficiency)
    assert found.loss["unexplained"] == pytest.approx(0, abs=1e-9)
    assert sum(found.parts_ns.values()) == pytest.approx(found.step_ns["plain"])


def test_strong_scaling_loses_what_does_not_shrink_with_the_batch(truth, point):
    found = point(replace(truth, mode="strong"), 4)
    divided = truth.input_ns + truth.forward_ns + truth.backward_ns
    fixed = truth.fixed_share * divided + truth.optimizer_ns + truth.host_ns
    assert found.loss["small_batch"] * found.step_ns["plain"] == pytest.approx(0.75 * fixed)


# Link

instants = st.lists(st.tuples(st.floats(0, 100), st.floats(0.01, 50)), min_size=1, max_size=8)


@given(instants)
def test_channels_move_the_same_bytes_in_the_same_total(cluster, jobs):
    launch = np.maximum.accumulate([at for at, _ in jobs]).tolist()
    work = [ns for _, ns in jobs]
    one, two = (cluster.transfers(launch, work, channels) for channels in (1, 2))
    assert max(one) == pytest.approx(max(two))
    expected, free = [], 0.0
    for at, ns in zip(launch, work, strict=True):
        free = max(free, at) + ns
        expected.append(free)
    assert one == pytest.approx(expected)
    assert all(d >= at + ns - 1e-9 for d, at, ns in zip(two, launch, work, strict=True))


def test_two_channels_share_the_link_evenly(cluster):
    # Alone until 2; then at half speed each until the first is done at 6; then the second alone.
    assert cluster.transfers([0, 2, 2], [4, 10, 3], 2) == pytest.approx([6, 17, 12])


# Records


def test_every_arm_of_every_rank_holds_the_expected_step(cluster, simulate, tmp_path):
    late = cluster.Straggler(rank=3, extra_ns=15 * MS, phase="host")
    quiet = replace(cluster.Truth(stragglers=(late,)).without_noise(), rounds=2, lead_in=8)
    expected = simulate(quiet, tmp_path / "run")
    for n in (2, 4):
        arms = ("bare_all", "ddp_solo", "plain")
        found = {arm: mean_step_ns(tmp_path / "run", 0, arm, n) for arm in arms}
        assert found == pytest.approx({arm: expected.points[n].step_ns[arm] for arm in arms})
    alone = mean_step_ns(tmp_path / "run", 0, "bare_one", 4)
    assert alone == pytest.approx(expected.points[4].step_ns["bare_one"])
    ends = mean_step_ns(tmp_path / "run", 3, "bare_all", 4) - mean_step_ns(tmp_path / "run", 0, "bare_all", 4)
    assert ends == pytest.approx(15 * MS)


def test_lines_are_as_the_format_says(cluster, simulate, tmp_path):
    simulate(cluster.Truth(rounds=2), tmp_path)
    folder = find_run(tmp_path)
    plan = files.read_json(folder.plan, planning.Plan, planning.SCHEMA)
    head, clock, *body, last, end = lines_of(tmp_path, 1)
    assert (head["t"], head["rank"], head["groups"]["1"], head["groups"]["2"]) == ("head", 1, [1], [0, 1])
    assert (clock["at"], last["at"]) == ("begin", "end")
    assert end == {"t": "end", "state": "done", "blocks": sum(line["t"] == "block" for line in body)}
    planned = [b for r in range(2) for b in schedule.round_blocks(plan, plan.trials, 0, r) if b.runs_on(1)]
    blocks = [x for x in body if x["t"] == "block"]
    assert [b["id"] for b in blocks] == [b.id for b in planned]
    steps: list[dict] = []
    for x in body:
        if x["t"] == "step":
            steps.append(x)
            continue
        assert records.as_line(records.BlockRecord(**{k: v for k, v in x.items() if k != "t"})) == x
        assert [s["i"] for s in steps] == list(range(x["steps"]))
        assert {s["b"] for s in steps} == {x["id"]}
        timed = x["arm"] in schedule.STEP_ARMS and x["arm"] != schedule.PLAIN
        assert {len(s["s"]) for s in steps} == {records.STEP_FIELDS.index("buffer_wait_ns") if timed else 2}
        assert all(("c" in s) == x["detailed"] for s in steps)
        for s in steps:
            assert all(isinstance(v, int) for v in s["s"])
            for c in s.get("c", ()):
                row = records.CollectiveRow(*c)
                assert row.ready_ns <= row.launch_ns <= row.done_ns <= s["s"][1]
                assert row.group == (1 if x["arm"] == schedule.DDP_SOLO else x["world_size"])
            if timed:
                begin, end, fetch, forward, backward, optimizer, computed, synced, _ = s["s"]
                assert begin + fetch + forward < computed <= synced == begin + fetch + forward + backward
                assert synced + optimizer < end
        steps = []
    assert steps == []


def test_a_clock_offset_is_what_must_be_subtracted(cluster, simulate, tmp_path):
    truth = replace(
        cluster.Truth().without_noise(), clock_offset_ns=(0, -(10**12)), rounds=1, world_sizes=(2,)
    )
    simulate(truth, tmp_path)
    zero, one = lines_of(tmp_path, 0), lines_of(tmp_path, 1)
    done = [
        [c[-1] for x in lines if x["t"] == "step" for c in x.get("c", ()) if c[2] == 2]
        for lines in (zero, one)
    ]
    for clock in (x for x in one if x["t"] == "clock"):
        error = np.array(done[1]) - clock["offset_ns"] - np.array(done[0])
        assert 0 < np.abs(error).max() <= clock["bound_ns"]


def test_replay_and_fabric_take_what_the_link_takes(cluster, simulate, tmp_path):
    truth = replace(cluster.Truth().without_noise(), rounds=1)
    simulate(truth, tmp_path)
    lines = lines_of(tmp_path, 0)
    arms = {x["id"]: (x["arm"], x["world_size"]) for x in lines if x["t"] == "block"}
    for arm, sizes in (("replay", [b.bytes for b in truth.buckets]), ("fabric", cluster.FABRIC_BYTES)):
        found = [c for x in lines if x["t"] == "step" and arms[x["b"]] == (arm, 4) for c in x["c"]]
        assert {c[3] for c in found} == set(sizes)
        for *_, size, _ready, launch, done in found:
            assert done - launch == pytest.approx(truth.reduce_ns(size, np.arange(4)), abs=2)


def test_noise_leaves_the_means_where_they_are(cluster, simulate, tmp_path):
    expected = simulate(cluster.Truth(rounds=20, seed=3), tmp_path)
    for n, arm in ((4, "bare_one"), (4, "bare_all"), (4, "ddp_solo"), (2, "plain"), (4, "plain")):
        found = mean_step_ns(tmp_path, 0, arm, n)
        assert found == pytest.approx(expected.points[n].step_ns[arm], rel=0.015)


def test_a_seed_gives_the_same_files(cluster, simulate, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        simulate(cluster.Truth(rounds=1, seed=seed), tmp_path / name)
    a, b, c = (store.RunFolder(tmp_path / name).launch(0).rank(2).read_bytes() for name in "abc")
    assert a == b != c
