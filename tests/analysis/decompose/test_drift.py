"""Lasting changes: of clusters in which one rank, or all, slow down on the way; none in steady noise."""

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from support.own_loops import own_loop

from scaling.analysis.decompose.drift import _apart, changed, changes, drifts
from scaling.analysis.decompose.stragglers import Light
from scaling.analysis.decompose.trials import RunRecords
from scaling.analysis.quality.clocks import DeviceSamples, with_telemetry
from scaling.analysis.results import Point
from scaling.cli.pipeline import rebuild
from scaling.hardware.nvml import REASONS
from scaling.records.paths import RunFolder
from scaling.records.tables import in_memory
from scaling.report import findings
from scaling.report.answer import answer
from scaling.report.tracking import tables
from scaling.settings.plan import OWN_LOOP

RANKS, ROUNDS, SINCE, LATE = 4, 60, 33, 2
MORE_MS = 4.0
"""A tenth of what a rank does by itself."""


def autocorrelated(rng, rounds, columns, rho, sigma):
    noise = rng.standard_normal((rounds + 50, columns))
    for k in range(1, len(noise)):
        noise[k] = rho * noise[k - 1] + (1 - rho**2) ** 0.5 * noise[k]
    return np.exp(sigma * noise[50:])


def loop(seed, rounds, rho, *, since=None, ranks=()):
    """Step, waits, own times, and these apart; 1 to 30 % noise, in common and of each rank, half of it in bursts."""
    rng = np.random.default_rng((seed, rounds, int(10 * rho)))
    n, sigma = (4, 0.03) if ranks else (2 + seed % 7, rng.choice([0.01, 0.03, 0.1, 0.3]))
    own = 40e6 * autocorrelated(rng, rounds, 1, rho, sigma / 2) * autocorrelated(rng, rounds, n, rho, sigma)
    if seed % 2 and not ranks:
        own *= 1 + (rng.random(own.shape) < 0.05) * rng.exponential(1, own.shape)
    own[since:, list(ranks)] *= 1.1
    step = own.max(axis=1, keepdims=True) + 5e6 * autocorrelated(rng, rounds, 1, rho, sigma)
    plain = step * autocorrelated(rng, rounds, 1, rho, sigma / 2)
    return np.hstack([plain, (step - own).mean(axis=1, keepdims=True), own, _apart(own)])


def named(series):
    """(round, columns) of each change that is told."""
    places = [0, *changes(series), len(series)]
    each = zip(places, pairwise(places[1:]), strict=False)
    told = [(at, changed(series[first:last], at - first)) for first, (at, last) in each]
    return [(at, columns) for at, columns in told if columns]


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.6, 0.8])
def test_nothing_is_named_in_steady_noise(rho):
    lengths = (30, 40, 100, 400)
    alarms = [bool(named(loop(seed, rounds, rho))) for rounds in lengths for seed in range(50)]
    assert sum(alarms) <= 0.01 * len(alarms)


def test_a_tenth_more_on_one_rank_is_named_in_noise_of_three_per_cent():
    told = [named(loop(seed, 200, 0.5, since=120, ranks=(1,))) for seed in range(40)]
    assert [[columns for _, columns in each] for each in told] == [[[3]]] * len(told)
    assert sum(abs(each[0][0] - 120) <= 2 for each in told) >= 0.8 * len(told)


@pytest.fixture(scope="module")
def slowed(measure, cluster):
    """slowed(ranks) -> (records, tables, plan) of an own loop in which these slow down in round SINCE."""

    def made(*ranks, phase="backward", **changes):
        late = tuple(
            cluster.Straggler(rank=r, extra_ns=MORE_MS * 1e6, phase=phase, since=SINCE) for r in ranks
        )
        truth = cluster.Truth(
            world_sizes=(RANKS,),
            rounds=ROUNDS,
            steps=3,
            lead_in=0,
            detailed=(0, 1),
            stragglers=late,
            **changes,
        )
        run = measure(truth)
        plan = replace(run.plan, source=OWN_LOOP)
        return RunRecords(run.tables, plan, usable=True).trial(RANKS), run.tables, plan

    return made


def test_the_rank_that_slows_down_since_when_and_by_how_much(slowed):
    records, tables, plan = slowed(LATE)
    (drift,) = drifts(records, tables, plan)
    assert (drift.ranks, drift.phase, drift.reasons) == ((LATE,), "backward", ())
    measure = plan.spec.measure
    assert abs(drift.since_step - measure.warmup_max - SINCE * measure.steps) <= measure.steps
    assert drift.more_ms.value == pytest.approx(MORE_MS, rel=0.05)
    assert drift.more_ms.holds(MORE_MS)
    begins = in_memory(tables.blocks)["host_begin_ns"]
    whole_s = (begins.max() - begins.min()) / 1e9
    assert drift.since_s / whole_s == pytest.approx(SINCE / ROUNDS, abs=0.03)


def test_where_all_slow_down_all_are_named_and_the_step_is_as_much_longer(slowed):
    (drift,) = drifts(*slowed(*range(RANKS), phase="optimizer", drift=0.0))
    assert (drift.ranks, drift.phase) == (tuple(range(RANKS)), "optimizer")
    assert drift.step_more_ms.value == pytest.approx(MORE_MS, rel=0.1)


def test_a_phase_that_the_loop_names_is_named(slowed):
    records, tables, plan = slowed(LATE, phase="optimizer")
    longer = records.arm("probe", ranks={LATE})["optimizer"]
    own_ns = {key: np.full((1, RANKS), ns) for key, ns in zip(records.keys(), longer, strict=True)}
    rollout = Light(own_ns=own_ns, waited={}, alike={})
    steady = rollout.changed(lambda _key, ns: np.full_like(ns, MORE_MS * 1e6))
    for named, phase in (({"rollout": rollout}, "rollout"), ({"reward": steady}, "optimizer")):
        (drift,) = drifts(replace(records, named=named), tables, plan)
        assert (drift.ranks, drift.phase) == ((LATE,), phase)
        point = Point(world_size=RANKS, hosts=1, status="done", step_ms=drift.after_ms, drifts=(drift,))
        assert f" in {phase}: " in next(findings.drift_lines(point))


def test_a_cluster_that_only_wanders_by_a_percent_has_no_drift(slowed):
    for seed in range(3):
        assert drifts(*slowed(seed=seed)) == ()


def test_a_power_cap_that_begins_at_the_same_time_is_named(slowed):
    _, tables, plan = slowed(LATE)
    begins = in_memory(tables.blocks.filter(round=SINCE))["host_begin_ns"].min()
    at = np.sort(in_memory(tables.blocks)["host_end_ns"].to_numpy())[::RANKS] - 1
    capped = DeviceSamples.of(
        at,
        sm_mhz=[1410 if t >= begins else 1980 for t in at],
        reasons=[REASONS["power_cap"] if t >= begins else 0 for t in at],
        power_w=[None] * len(at),
    )
    others = DeviceSamples.of(at, sm_mhz=[1980] * len(at), reasons=[0] * len(at), power_w=[None] * len(at))
    samples = {(0, rank): capped if rank == LATE else others for rank in range(RANKS)}
    tables = tables.having({"blocks": with_telemetry(in_memory(tables.blocks), samples).lazy()})
    (drift,) = drifts(RunRecords(tables, plan, usable=True).trial(RANKS), tables, plan)
    assert drift.reasons == ("power_cap",)
    point = Point(world_size=RANKS, hosts=1, status="done", step_ms=drift.after_ms, drifts=(drift,))
    (line,) = findings.drift_lines(point)
    assert line.startswith(f"rank {LATE} in backward: ")
    assert line.endswith("; power cap, SM clock 1980 MHz before, 1410 since")
    assert "ms ±" in line
    assert " longer against the others from step " in line


def test_every_report_of_an_own_loop_has_it_and_the_answer_from_a_twentieth_of_the_step_on(cluster, tmp_path):
    late = cluster.Straggler(rank=1, extra_ns=2 * MORE_MS * 1e6, phase="optimizer", since=20)
    truth = cluster.Truth(
        world_sizes=(2,), rounds=40, steps=3, lead_in=0, detailed=(0, 1), stragglers=(late,)
    )
    folder = RunFolder(own_loop(truth, tmp_path / "own"))
    rebuilt = rebuild(folder)
    said = r"rank 1 in optimizer: (7\.[89]|8)[^ ]* ms .* longer against the others from step "
    assert re.search(said.replace("rank", "Rank", 1), answer(rebuilt.analysis))
    for path in (folder.report_txt, folder.report_html):
        text = " ".join(path.read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ").split())
        assert re.search(said, text)
    rows = tables.tables(rebuilt.analysis)["drifts"]
    (row,) = (dict(zip(rows["columns"], each, strict=True)) for each in rows["rows"])
    assert (row["ranks"], row["phase"]) == ("1", "optimizer")
    assert row["more_ms_low"] < 2 * MORE_MS < row["more_ms_high"]
