"""The harness's own arms, probe and analysis on the simulated device, against what the simulation knows."""

from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.slow
SHARE, LEAST_MS = 0.02, 0.02


@pytest.fixture(scope="module")
def parts(simulated_parts):
    names = ("case", "run", "communicators", "norms")
    return SimpleNamespace(**{name: simulated_parts(name) for name in names})


def missed(figures):
    return [figure for figure in figures if not figure.right(SHARE, LEAST_MS)]


@pytest.fixture(scope="module")
def pair(parts):
    """The same case without a late rank and with one that is late on its stream."""
    return [parts.run.run(parts.case.draw(7, 2, late, rounds=3, steps=4)) for late in ("", "stream")]


def test_transfers_waits_and_closure_are_the_simulations(parts, pair):
    for ran in pair:
        assert missed(parts.run.figures(ran)) == []
        assert ran.point.closure.value == pytest.approx(1, abs=SHARE)


def test_the_late_rank_is_found_with_what_it_costs(pair):
    clean, late = pair
    assert clean.point.straggler is None
    found = late.point.straggler
    assert found.rank == late.case.late_rank
    assert found.cost_ms.value * 1e6 == pytest.approx(late.plain_ns - clean.plain_ns, rel=SHARE)


def test_a_step_that_waits_for_its_launches_is_as_long_in_detailed_blocks(parts):
    """The probe's hook averages in the all-reduce: a kernel of its own for each bucket took 9 % more."""
    ran = parts.run.run(parts.case.draw(7, 2, rounds=3, steps=4, **parts.case.LAUNCH_BOUND))
    assert "launch_bound" in [verdict.cause for verdict in ran.analysis.verdicts]
    assert ran.detailed_ns == pytest.approx(ran.plain_ns, abs=10)  # ns; its stamps cost nothing there
    assert ran.point.closure.value == pytest.approx(1, abs=1e-3)


def test_the_size_sweep_is_the_links_own_curve(parts, pair):
    assert missed(parts.run.curve_figures(pair[0])) == []
    one, many, link = pair[0].smallest_us()
    assert many == pytest.approx(link, rel=SHARE, abs=5)
    assert one > many


def test_read_as_if_collectives_of_a_communicator_ran_at_once_they_are_wrong(parts, pair):
    assert missed(parts.run.figures(pair[0], pair[0].as_gloo())) != []


def test_two_communicators_share_the_wire_and_each_is_what_it_takes_alone(parts):
    merged, _, known = parts.communicators.run(parts.case.draw(7, 2))
    for k, alone in enumerate(known[0][-1].alone):
        assert merged.transfer[:, k].mean() == pytest.approx(alone, rel=SHARE)
    assert merged.shared.max() > 0


def test_the_waits_of_synchronised_norms_are_skew_or_transfer_and_the_late_rank_is_found(parts):
    case = parts.case.draw(7, 2, "stream")
    found = parts.norms.run(case)
    assert found.skew == pytest.approx(found.known_skew, rel=SHARE, abs=20_000)
    assert found.transfer == pytest.approx(found.known_transfer, rel=SHARE, abs=20_000)
    assert found.latest() == case.late_rank
    assert found.cost_ns(case.late_rank) == pytest.approx(case.late_us * 1e3, rel=SHARE)
