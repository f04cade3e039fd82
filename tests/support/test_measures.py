"""Tests that measure, where a hypervisor keeps the cores: what they fail by then is no failure, and all else is."""

from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("plugin.py").read_text()
HOST = """

class Host:  # a second of busy time between two looks
    busy_ns = 0

    def sample(self):
        Host.busy_ns += 10**9
        return {{"cpu_busy_ns": self.busy_ns, "cpu_stolen_ns": {stolen}}}
"""
FAILING = """
import pytest

@pytest.mark.measures
def test_that_measures():
    assert 0.85 > 0.9

def test_that_does_not():
    assert False
"""


@pytest.mark.parametrize(
    ("stolen", "skipped"),
    [("self.busy_ns // 10", 1), ("self.busy_ns // 100", 0), ("None", 0)],
    ids=["a tenth", "a hundredth", "the kernel does not tell"],
)
def test_only_what_measures_is_skipped_and_only_for_steal(pytester, stolen, skipped):
    pytester.makeini("[pytest]\nmarkers =\n    measures: as in this project")
    pytester.makeconftest(CONFTEST + HOST.format(stolen=stolen))
    pytester.makepyfile(FAILING)
    done = pytester.runpytest("-rs", "-p", "no:cacheprovider")
    done.assert_outcomes(failed=2 - skipped, skipped=skipped)
    if skipped:
        done.stdout.fnmatch_lines(
            ["*failed while the hypervisor kept 10% of the busy time for others: assert 0.85 > 0.9"]
        )
