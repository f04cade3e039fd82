"""Where a target's latency and bandwidth come from, and what a prediction says that it leans on."""

import dataclasses

import numpy as np
import pytest

from scaling.analysis.network.curve import NoPathError
from scaling.analysis.predict.change import LATENCY
from scaling.analysis.predict.fabrics import LATENCY_NOMINAL, carries, named_fabric
from scaling.analysis.predict.predictions import as_measured, predictions
from scaling.analysis.predict.sources import read_sources
from scaling.settings.topology import Level, Link, Topology

GLOO_HOP_NS = 600e3
"""A thousand times what a hop over NVLink takes."""


@pytest.fixture(scope="module")
def run(measure, cluster):
    return measure(cluster.Truth(world_sizes=(1, 2, 4), alpha_ns=GLOO_HOP_NS, rounds=4))


@pytest.fixture(scope="module")
def sources(run):
    return read_sources(run.records)


def machine(levels=(), rate=None, latency_us=None, **changes):
    link = Link(rate_bit_s=rate, latency_us=latency_us)
    whole = {"ranks_per_host": 8, "device": "cuda", "backend": "nccl", **changes}
    return Topology(name="target", kind="local", levels=levels, link=link, **whole)


def hop_us(links, level=0):
    (value,) = np.unique(links.levels[level].alpha.values)
    return value / 1e3


@pytest.mark.parametrize(
    ("level", "us"),
    [
        (Level(name="nvlink", ranks=8, rate_bit_s=3_600_000_000_000, latency_us=2.0), 2.0),
        (Level(name="nvlink", ranks=8, rate_bit_s=3_600_000_000_000), 3.4),
        (Level(name="inner", ranks=8, rate_bit_s=3_600_000_000_000, link_class="NV12"), 3.4),
        (Level(name="pcie", ranks=8, rate_bit_s=252_000_000_000), 5.7),
    ],
)
def test_latency_is_the_targets_own_or_a_named_reference(run, sources, level, us):
    links = named_fabric(machine((level,)), run.plan.spec.topology, sources[-1], 8)
    assert hop_us(links) == us
    assert links.latency_factor == LATENCY_NOMINAL
    assert (level.latency_us is None) == ("NCCL's own model" in links.latency[0])


def test_a_latency_that_a_log_shows_is_known_better(run, sources):
    level = Level(name="8", ranks=8, rate_bit_s=10**12, latency_us=2.0, link_class="measured")
    assert named_fabric(machine((level,)), run.plan.spec.topology, sources[-1], 8).latency_factor == LATENCY


def test_between_emulated_links_the_measured_latency_is_carried_over(run, sources):
    own = run.plan.spec.topology
    other = dataclasses.replace(own, name="other", link=Link(rate_bit_s=10**9))
    assert carries(own, other)
    links = named_fabric(other, own, sources[-1], 4)
    assert links.levels[0].alpha is sources[-1].link.alpha
    assert links.latency_factor == LATENCY


def test_a_rate_that_is_missing_is_asked_for(run, sources):
    with pytest.raises(NoPathError, match=r"gives no rate of its pcie.*topology\.levels"):
        named_fabric(machine((Level(name="pcie", ranks=8),)), run.plan.spec.topology, sources[-1], 8)


def test_the_latency_of_another_back_end_than_nccl_is_asked_for(run, sources):
    own = dataclasses.replace(run.plan.spec.topology, backend="nccl")
    where = machine(rate=10**9, backend="gloo", device="cpu")
    with pytest.raises(NoPathError, match=r"give it, such as topology\.link\.latency_us"):
        named_fabric(where, own, sources[-1], 16)


def asked(plan, *world_sizes, where, **changes):
    return dataclasses.replace(
        as_measured(plan), world_sizes=world_sizes, topology=where, elsewhere=True, **changes
    )


def predicted(run, sources, question):
    return predictions(sources, run.plan, run.analysis, question)


def test_many_gpus_do_not_wait_for_the_latency_of_gloo(run, sources):
    where = machine(rate=400 * 10**9)
    (point,) = predicted(run, sources, asked(run.plan, 64, where=where)).points
    assert point.loss.link_latency.high < 0.2
    assert point.efficiency.value > 0.7
    gloo = dataclasses.replace(where, backend="gloo", device="cpu")
    (slow,) = predicted(run, sources, asked(run.plan, 64, where=gloo)).points
    assert slow.loss.link_latency.value > 0.7


def test_the_measured_link_within_a_host_is_not_nvlink(measure, cluster):
    run = measure(cluster.Truth(world_sizes=(2, 4), hosts=1, ranks_per_host=4, rounds=4))
    (point,) = predicted(run, read_sources(run.records), asked(run.plan, 4, where=machine())).points
    assert "give topology.levels" in point.cannot


def test_a_missing_link_between_hosts_is_told_by_the_hosts_that_are_needed(run, sources):
    with pytest.raises(NoPathError, match="64 ranks need 8 hosts of 8"):
        predicted(run, sources, asked(run.plan, 64, where=machine()))


def test_every_assumption_has_its_effect_and_the_largest_comes_first(run, sources):
    found = predicted(run, sources, asked(run.plan, 8, 64, where=machine(rate=400 * 10**9)))
    effects = [abs(one.step_change) for one in found.assumptions]
    assert effects == sorted(effects, reverse=True)
    said = {one.what.partition(":")[0]: one for one in found.assumptions}
    latency = said["latency"]
    assert "network: 9.6 us a hop, NCCL's own model" in latency.what
    assert "within a host: not known" in latency.what
    assert (latency.varied, latency.step_change > 0, latency.efficiency_change < 0) == ("x3", True, True)
    assert {"bandwidth", "communication slows compute down as much as in the run"} <= said.keys()
    assert any("compute_scale=2" in one.what and one.step_change < -0.3 for one in found.assumptions)
    assert any("its latency and bandwidth are not" in note for note in found.notes)


def test_what_was_measured_leans_on_nothing(run, sources):
    question = dataclasses.replace(as_measured(run.plan), world_sizes=(4,))
    assert predicted(run, sources, question).assumptions == ()
