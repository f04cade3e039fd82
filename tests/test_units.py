"""Text to integers and numbers to text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.errors import InputError
from scaling.units import (
    format_bytes,
    format_duration,
    format_rate,
    hostlist,
    parse_bytes,
    parse_rate_bit_s,
    parse_time_limit_s,
    significant,
    spans,
    two_digits,
)


@pytest.mark.parametrize(
    ("text", "bit_s"),
    [
        ("200mbit", 200_000_000),
        ("2.5gbit", 2_500_000_000),
        ("1 Gbit/s", 10**9),
        ("100 mbitps", 10**8),
        ("64kbit", 64_000),
        ("1tbit", 10**12),
        ("300bit", 300),
    ],
)
def test_rates_are_decimal(text, bit_s):
    assert parse_rate_bit_s(text, "topology.link.rate") == bit_s


@pytest.mark.parametrize(
    "text", ["", "200", "fast", "-5mbit", "0mbit", "0.4bit", "1e3mbit", "5MiB", "mbit", "1 2mbit"]
)
def test_what_is_no_rate_is_refused_with_the_key_and_an_example(text):
    with pytest.raises(InputError, match=r"topology\.link\.rate=.*mbit.*such as 200mbit") as caught:
        parse_rate_bit_s(text, "topology.link.rate")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "count"),
    [("2GiB", 2**31), ("1.5KiB", 1536), ("10 MB", 10**7), ("512B", 512), ("1TiB", 2**40), ("1KB", 1000)],
)
def test_sizes_are_binary_where_written_with_an_i(text, count):
    assert parse_bytes(text, "memory_limit") == count


@pytest.mark.parametrize("text", ["", "2", "-1GiB", "0MiB", "2gib", "2 bits", "GiB", "0.3B"])
def test_what_is_no_size_is_refused_with_the_key_and_an_example(text):
    with pytest.raises(InputError, match=r"memory_limit=.*GiB.*such as 2GiB"):
        parse_bytes(text, "memory_limit")


READ_AT_A_GLANCE = {
    format_bytes: {0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 9 * 2**20: "9 MiB", 2**31: "2 GiB"},
    format_rate: {
        300: "300 bit/s",
        64e3: "64 kbit/s",
        200e6: "200 Mbit/s",
        191_281_373: "191.3 Mbit/s",
        3.2e12: "3.2 Tbit/s",
    },
    format_duration: {
        0.04: "0.0 s",
        7.25: "7.2 s",
        12.3: "12 s",
        60: "1 min 0 s",
        75: "1 min 15 s",
        59.7: "1 min 0 s",
        3599.7: "1 h 0 min",
        3 * 3600 + 90: "3 h 1 min",
    },
}


@pytest.mark.parametrize(
    ("format_", "number", "text"),
    [(format_, *example) for format_, examples in READ_AT_A_GLANCE.items() for example in examples.items()],
)
def test_numbers_are_read_at_a_glance(format_, number, text):
    assert format_(number) == text


@given(st.integers(1, 2**50))
def test_a_size_that_was_printed_reads_back_to_its_digits(count):
    assert parse_bytes(format_bytes(count), "size") == pytest.approx(count, rel=0.005)


@given(st.integers(10**3, 10**14))
def test_a_rate_that_was_printed_reads_back_to_its_digits(bit_s):
    assert parse_rate_bit_s(format_rate(bit_s), "rate") == pytest.approx(bit_s, rel=0.0005)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90 * 60),
        ("1:30", 90),
        ("1:30:00", 5400),
        ("1-12", 36 * 3600),
        ("1-12:30", 36 * 3600 + 1800),
        ("0-0:0:5", 5),
    ],
)
def test_time_limits_as_slurm_writes_them(text, seconds):
    assert parse_time_limit_s(text, "cluster.time") == seconds


@pytest.mark.parametrize("text", ["0", "0:00", "0-0", "", "soon", "-5", "1:2:3:4", "1.5", "UNLIMITED"])
def test_what_is_no_time_limit_is_refused(text):
    with pytest.raises(InputError, match="not a time limit above 0"):
        parse_time_limit_s(text, "cluster.time")


@pytest.mark.parametrize(
    ("values", "text"), [([], []), ([3], ["3"]), ({0, 1, 2, 5}, ["0-2", "5"]), ([7, 5, 6, 0], ["0", "5-7"])]
)
def test_ranks_are_written_as_ranges(values, text):
    assert spans(values) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.0, "0"), (0.523, "0.52"), (4.83, "4.8"), (12.4, "12"), (99.7, "100"), (476.3, "476")],
)
def test_two_digits_need_no_exponent(number, text):
    assert two_digits(number) == text


@pytest.mark.parametrize(
    ("number", "digits", "text"),
    [
        (0.5234, 3, "0.523"),
        (99.97, 3, "100"),
        (3120.2, 3, "3120"),
        (101.94, 4, "101.9"),
        (312_000.4, 4, "312000"),
    ],
)
def test_a_large_number_needs_no_exponent(number, digits, text):
    assert significant(number, digits) == text


def test_nor_do_bytes_just_below_a_unit():
    assert format_bytes(999.7 * 2**20) == "1000 MiB"


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["login"], "login"),
        (["gpu1", "gpu2", "gpu3", "gpu7"], "gpu[1-3,7]"),
        (["n9", "n10", "n11"], "n9,n[10-11]"),
        (["n08", "n09", "a", "b4"], "n[08-09],a,b4"),
        (["x1", "x1"], "x1"),
    ],
)
def test_hosts_as_slurm_writes_them(names, text):
    assert hostlist(names) == text
