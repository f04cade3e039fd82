"""What simulated steps cost by cause: in the words of a measured waterfall, and adding up."""

import pytest
from support.results import spec

from scaling.settings.parallel import Mesh
from scaling_simulator.simulate.ask import (
    ALIKE,
    EXPECTED,
    FAVOURABLE,
    UNCROWDED,
    UNDELAYED,
    UNDISTURBED,
    UNFAVOURABLE,
)
from scaling_simulator.simulate.outcome import point
from scaling_simulator.simulation import Memory, Simulated, Step, Transfers

MS = 1_000_000


def step(physics, step_ms, compute_ms, exposed_ms=0, sent_ms=0, waited_ms=0):
    sent = Transfers(
        kind="all_reduce",
        group="default_pg",
        calls=2,
        bytes=1000,
        busy_ns=(sent_ms + waited_ms) * MS,
        exposed_ns=exposed_ms * MS,
        waited_ns=waited_ms * MS,
    )
    return Step(
        physics=physics,
        step_ns=step_ms * MS,
        compute_ns=compute_ms * MS,
        exposed_ns=exposed_ms * MS,
        idle_ns=(step_ms - compute_ms - exposed_ms) * MS,
        transfers=(sent,) if sent_ms else (),
    )


def found(*steps):
    memory = Memory(
        peak_bytes=1, parameters_bytes=1, gradients_bytes=0, optimizer_bytes=0, activations_bytes=0
    )
    return Simulated(steps=steps, memory=memory)


def waterfall(*steps):
    """Against a rank alone whose step takes 100 ms."""
    one, two = (Mesh(replicate=n) for n in (1, 2))
    base = found(step(EXPECTED, 100, 100)), one, 4
    return point(spec(), two, 4, found(*steps), base, 10)


LINK_BOUND = (
    step(EXPECTED, 200, 128, 70, sent_ms=120, waited_ms=4),
    step(ALIKE, 198, 127, 70, sent_ms=120),
    step(UNDISTURBED, 198, 105, 92, sent_ms=120),
    step(UNCROWDED, 198, 102, 95, sent_ms=120),
    step(UNDELAYED, 180, 102, 77, sent_ms=90),
)
"""Kernels that communication slows do not make the step longer: it waits for the link anyway."""


def test_compute_that_communication_slows_is_overlap_even_where_the_step_waits_for_the_link_anyway():
    loss = waterfall(*LINK_BOUND).loss
    assert loss.overlap.value == pytest.approx((127 - 105) / 200)
    assert loss.neighbours.value == pytest.approx((105 - 102) / 200)
    assert loss.straggler.value == pytest.approx((200 - 198) / 200)


def test_the_link_costs_what_is_exposed_of_it_divided_by_what_latency_is_of_its_transfers():
    loss = waterfall(*LINK_BOUND).loss
    assert loss.link_latency.value == pytest.approx(70 / 200 * (1 - 90 / 120))
    assert loss.link_bandwidth.value == pytest.approx(70 / 200 * 90 / 120)


def test_causes_add_up_to_what_efficiency_lacks():
    at = waterfall(*LINK_BOUND)
    assert at.efficiency.value == pytest.approx(0.5)
    causes = [getattr(at.loss, name) for name in at.loss.__dataclass_fields__]
    assert sum(cause.value for cause in causes if cause is not None) == pytest.approx(0.5)
    assert at.loss.host.value == pytest.approx(1 / 200)
    assert at.loss.strategy_overhead.value == pytest.approx(2 / 200)


def test_without_spread_and_slowdown_their_causes_cost_nothing():
    loss = waterfall(step(EXPECTED, 150, 110, 40, sent_ms=40)).loss
    assert (loss.straggler.value, loss.overlap.value, loss.neighbours.value) == (0, 0, 0)
    assert loss.link_latency.value == 0
    assert loss.link_bandwidth.value == pytest.approx(40 / 150)


def test_an_interval_holds_the_value_though_both_ends_lie_on_one_side():
    at = waterfall(
        step(EXPECTED, 150, 110, 40), step(FAVOURABLE, 151, 110, 41), step(UNFAVOURABLE, 160, 110, 50)
    )
    assert (at.step_ms.low, at.step_ms.value, at.step_ms.high) == (150, 150, 160)
