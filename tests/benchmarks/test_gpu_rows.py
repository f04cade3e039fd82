"""Rows of the GPU benchmark against their bars."""

import pytest


@pytest.fixture
def rows(gpu_parts):
    return gpu_parts.rows


@pytest.mark.parametrize(
    ("events_ms", "profiler_ms", "met"),
    [
        (10.1, 10.0, True),
        (10.3, 10.0, False),
        (9.7, 10.0, False),
        (0.018, 0.010, True),  # 8 us of 10: an event's own cost
        (0.030, 0.010, False),
        (0.0, 0.0, True),
    ],
)
def test_a_phase_within_two_percent_or_ten_microseconds(rows, events_ms, profiler_ms, met):
    assert rows.phase("forward", events_ms, profiler_ms).met is met


@pytest.mark.parametrize(
    ("light", "again", "met"),
    [
        ((1.002, 1.001, 1.003), (1.0, 0.998, 1.002), True),
        ((1.006, 1.005, 1.007), (1.0, 0.998, 1.002), False),
        ((1.002, 0.990, 1.014), (1.0, 0.990, 1.010), False),  # A/A alone is 1 % wide: nothing can be told
        ((0.998, 0.997, 0.999), (1.001, 0.999, 1.003), True),
    ],
)
def test_a_probe_costs_half_a_percent_at_most_and_a_a_must_be_able_to_tell(rows, light, again, met):
    assert rows.overhead("stamps", light, again, 0.01).met is met


def test_what_has_no_bar_is_neither_met_nor_missed(rows):
    row = rows.overhead("buckets", (1.05, 1.04, 1.06), None, 0.5)
    assert row.met is None
    assert row.measured.startswith("+5.00% [+4.00%, +6.00%]")


@pytest.mark.parametrize(
    ("bound_ns", "late_ns", "met"),
    [
        (9_000, [4_000, 5_000, 6_000], [True, True]),
        (300_000, [4_000, 5_000, 6_000], [False, True]),
        (9_000, [-10_500, 5_000, 6_000], [True, True]),  # within the bound and what the call itself takes
        (9_000, [-20_000, 5_000, 6_000], [True, False]),
        (9_000, [4_000, 500_000, 600_000], [True, False]),
    ],
)
def test_an_event_is_no_earlier_than_its_bound_allows(rows, bound_ns, late_ns, met):
    assert [row.met for row in rows.anchors(bound_ns, late_ns)] == met


@pytest.mark.parametrize(
    ("ours", "theirs", "slack", "met"),
    [
        ((1905.0, 1920.0), 1910.0, 0, True),
        ((1905.0, 1920.0), 1860.0, 60, True),
        ((1905.0, 1920.0), 1800.0, 60, False),
        ((16.0,), 16.0, 0, True),
        ((16.0,), 8.0, 0, False),
        (("H200",), "H200", 0, True),
        (("H200",), "H100", 0, False),
        ((None, None), None, 0, True),
        ((None, None), 60.0, 1, False),
        ((60.0, 60.0), None, 1, None),
        ((60.0, 60.0), "[odd]", 1, False),
    ],
)
def test_a_field_beside_nvidia_smi_s(rows, ours, theirs, slack, met):
    assert rows.beside("field", ours, theirs, slack).met is met


def point(step=10.0, busbw=None):
    comm = {"busbw_gbit_s": {"value": busbw}} if busbw else None
    return {"step_ms": {"value": step} if step else None, "comm": comm}


def test_a_run_is_whole_with_every_world_size(rows):
    points = {1: point(), 2: point(12.0, 3.5)}
    whole, one, two = rows.run("gloo", 0, points, [1, 2])
    assert whole.met is True
    assert (one.what, one.measured, one.met) == ("gloo, 1 rank", "step 10.00 ms", None)
    assert (two.what, two.measured) == ("gloo, 2 ranks", "step 12.00 ms, busbw 3.5 Gbit/s")
    assert rows.run("gloo", 3, points, [1, 2])[0].met is False
    assert rows.run("gloo", 0, points, [1, 2, 4])[0].met is False
    assert rows.run("gloo", 0, {1: point(step=None)}, [1])[0].met is False


def test_the_whole_is_met_where_something_was_judged_and_nothing_missed(rows):
    met, missed, none = (rows.Row(section="s", what="w", measured="m", met=m) for m in (True, False, None))
    assert rows.passed([met, none])
    assert not rows.passed([met, missed])
    assert not rows.passed([none])
    assert not rows.passed([])
    assert [row.met for row in rows.unjudged([met, missed, none])] == [None] * 3


def test_the_table_says_what_was_missed(rows):
    first = rows.Row(section="a", what="one", measured="1 ms", bar="2 ms", met=True)
    second = rows.Row(section="b", what="two", measured="3 ms", met=False)
    lines = rows.table([first, second]).splitlines()
    assert lines[0].split() == ["a", "one", "met", "1", "ms"]
    assert lines[1].strip() == "bar 2 ms"
    assert lines[2] == ""
    assert "MISSED" in lines[3]
