"""The hosts beside each other, in every report."""

from dataclasses import replace

import pytest
from support.reports import as_text, page

from scaling.analysis.results import HostSpeed, Measured
from scaling.report.machines import SHOWN, host_lines, host_table
from scaling.report.tracking import tables

ONE = Measured(1.0, 0.99, 1.01, 6)


def host(number, *, step=ONE, link=ONE, slow_in=(), hostname=None):
    return HostSpeed(
        host=number,
        hostname=hostname or f"node-{number}.cluster",
        ranks=(number, number + 4),
        step_ms=step
        and Measured(step.value * 40, step.low and step.low * 40, step.high and step.high * 40, 6),
        step_ratio=step,
        link_gbit_s=link and Measured(link.value * 0.19, link.low * 0.19, link.high * 0.19, 6),
        link_ratio=link,
        slow_in=slow_in,
    )


SLOW = host(2, step=Measured(1.2, 1.19, 1.21, 6), link=Measured(0.5, 0.49, 0.51, 6), slow_in=("step", "link"))
HOSTS = (host(0), host(1), SLOW, host(3))
SAID = (
    "host 2 node-2 stands out: its own step takes 1.200 ±0.010 times the median host's",
    "host 2 node-2 stands out: its link gives 0.500 ±0.010 of the median host's",
)


@pytest.fixture
def shown(sample):
    """shown(hosts): what each renderer shows of a run with them, as text."""
    return lambda hosts: as_text(replace(sample.good(), hosts=hosts), sample.plan())


def test_a_host_that_stands_out_is_named_with_its_figures():
    assert host_lines(HOSTS) == SAID
    table = host_table(HOSTS)
    assert table.columns[0] == ("host", "")
    assert table.rows[2] == ("2 node-2", "48.0 ±0.4", "1.200 ±0.010", "0.0950 ±0.0019", "0.500 ±0.010")


def test_every_report_says_the_same(shown):
    for said in shown(HOSTS).values():
        assert all(f"H{line[1:]}." in said for line in SAID)
        assert "48.0 ±0.4" in said


def test_a_run_of_packed_ranks_has_no_hosts(shown):
    assert host_lines(()) == ()
    assert all("stands out" not in said and "/ median" not in said for said in shown(()).values())


def test_equal_hosts_and_too_few_rounds_are_told_apart():
    (equal,) = host_lines((host(0), host(1)))
    assert equal.startswith("no host stands out")
    (few,) = host_lines(tuple(host(n, step=Measured(1.0 + n, n=2), link=None) for n in (0, 1)))
    assert few == "too few rounds to tell one host from another"


def test_hosts_without_a_link_of_their_own_have_no_column_for_it():
    table = host_table((host(0, link=None), host(1, link=None)))
    assert [name for name, _ in table.columns] == ["host", "step", "/ median"]


def test_of_many_hosts_the_slowest_are_shown_and_the_others_counted(shown):
    many = (*(host(n) for n in range(40)), replace(SLOW, host=40, hostname="x" * 60))
    rows = host_table(many, SHOWN).rows
    assert len(rows) == SHOWN
    assert rows[0][0] == f"40 {'x' * 24}"
    assert "25 other hosts not shown" in host_lines(many, SHOWN)[-1]
    assert "not shown" not in " ".join(host_lines(many))
    assert "25 other hosts" in shown(many)["terminal"]


def test_a_name_that_tries_to_break_out_is_harmless(sample):
    hostile = (host(0, hostname=sample.HOSTILE), host(1))
    text = page(replace(sample.good(), hosts=hostile), sample.plan(), ())
    assert "<script>alert" not in text


def test_wandb_has_a_row_a_host(sample):
    found = tables.tables(replace(sample.good(), hosts=HOSTS))["hosts"]
    assert len(found["rows"]) == 4
    row = dict(zip(found["columns"], found["rows"][2], strict=True))
    assert (row["host"], row["ranks"], row["slow_in"]) == (2, "2, 6", "step, link")
    assert (row["step_ratio"], row["link_gbit_s_high"]) == (1.2, pytest.approx(0.51 * 0.19))
