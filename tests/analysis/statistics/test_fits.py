"""Laws over world sizes, from speedups that obey them."""

from __future__ import annotations

import pytest

from scaling.analysis.results import Fits, Measured, Point
from scaling.analysis.statistics.fits import fits

SIZES = (1, 2, 4, 8, 16)


def usl(n, sigma=0.04, kappa=0.001):
    return n / (1 + sigma * (n - 1) + kappa * n * (n - 1))


def points(speedup, share=0.01, sizes=SIZES, **more):
    """A point a size whose speedup is known to a share of it; None: without an interval."""
    found = []
    for n in sizes:
        s = speedup(n)
        about = Measured(s, n=8) if share is None else Measured(s, s * (1 - share), s * (1 + share), 8)
        found.append(Point(world_size=n, hosts=1, status="done", speedup=about, **more))
    return found


def test_the_serial_fraction_of_amdahls_law_comes_back():
    found = fits(points(lambda n: 1 / (0.05 + 0.95 / n)), "strong").karp_flatt
    assert [k.world_size for k in found] == [2, 4, 8, 16]
    assert [k.serial_fraction.value for k in found] == pytest.approx([0.05] * 4)


def test_its_interval_is_that_of_the_speedup():
    (found,) = fits(points(lambda _n: 3.2, share=0.05, sizes=(4,)), "strong").karp_flatt
    ends = found.serial_fraction.low, found.serial_fraction.high
    assert ends == pytest.approx([(1 / s - 0.25) / 0.75 for s in (3.2 * 1.05, 3.2 * 0.95)])
    assert found.serial_fraction.n == 8


def test_weak_scaling_has_no_serial_fraction():
    assert fits(points(usl), "weak").karp_flatt == ()


@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_the_universal_scalability_law_comes_back(mode):
    found = fits(points(usl), mode).usl
    assert found.sigma.value == pytest.approx(0.04)
    assert found.kappa.value == pytest.approx(0.001)
    assert found.sigma.low < 0.04 < found.sigma.high
    assert found.kappa.low < 0.001 < found.kappa.high
    assert found.peak_world_size == pytest.approx((0.96 / 0.001) ** 0.5)


def test_without_coherency_cost_there_is_no_peak():
    found = fits(points(lambda n: usl(n, kappa=0.0)), "weak").usl
    assert found.kappa.value == pytest.approx(0.0, abs=1e-9)
    assert found.kappa.low == 0
    assert found.peak_world_size is None


def test_more_than_linear_speedup_is_no_negative_cost():
    found = fits(points(lambda n: n * 1.1 if n > 1 else 1.0), "weak").usl
    assert (found.sigma.value, found.kappa.value) == (0, 0)


def test_sizes_that_leave_the_law_are_known_worse_by_it():
    exact, bent = (fits(points(lambda n, b=b: usl(n) * (b if n == 8 else 1)), "weak").usl for b in (1, 0.8))
    assert bent.sigma.half_width > 2 * exact.sigma.half_width


@pytest.mark.parametrize("sizes", [SIZES[:-1], (2, 4, 8)], ids=["three above 1", "three"])
def test_fewer_than_four_sizes_above_1_make_no_fit(sizes):
    assert fits(points(usl, sizes=sizes), "weak").usl is None


def test_speedups_without_intervals_make_no_fit():
    assert fits(points(usl, share=None), "weak").usl is None


def test_speedups_over_more_than_one_rank_make_none_of_both():
    assert fits(points(usl, base_world_size=2), "strong") == Fits()


def test_a_run_has_the_fits_of_its_points(measure, cluster):
    run = measure(cluster.Truth(mode="strong", batch=64, world_sizes=(1, 2, 4), rounds=4, steps=6))
    (two, four) = run.analysis.fits.karp_flatt
    for found in (two, four):
        n, speedup = found.world_size, run.point(found.world_size).speedup.value
        assert found.serial_fraction.value == pytest.approx((1 / speedup - 1 / n) / (1 - 1 / n))
    assert run.analysis.fits.usl is None
