"""What the demo's benchmark takes from a demo for the docs, and which shares it holds against it."""

import pytest
from support.benchmark_parts import benchmark_part

demo = benchmark_part("demo")

REPORT = """\
answer    small on a link: At 2 ranks the run keeps 46 %.
try       a faster link
#
# model      small
#
# key figures
#ranks  step
#         ms
     1    50
     2    90
# transfer, skew: what a step waits for
#
# 2 ranks on 2 hosts
  input 1
  memory           365 MiB
# report  /somewhere
"""
PRINTED = f"""{REPORT}# throughput, other over base
  2 ranks            1.98 ±0.07
#
# settings that differ, base and other
  - topology
#
# answer
  At 2 ranks the fast link is faster.
comparison: /somewhere
"""


@pytest.fixture
def one():
    return demo.Demo(took_s=1.0, printed=PRINTED, report=REPORT, analyses=(), ratio={})


def test_the_readme_shows_the_first_lines(one):
    assert (
        demo.readme_lines(one)
        == "answer    small on a link: At 2 ranks the run keeps 46 %.\ntry       a faster link\n"
    )


def test_the_tour_shows_the_key_figures_and_the_ratios_too(one):
    shown = demo.tour_lines(one)
    assert shown.startswith("answer    small on a link")
    assert "a faster link\n...\n# key figures\n#ranks  step\n" in shown
    assert "     2    90\n...\n# throughput" in shown
    assert "memory" not in shown
    assert "settings" not in shown
    assert shown.endswith(
        "  2 ranks            1.98 ±0.07\n#\n# answer\n  At 2 ranks the fast link is faster.\n"
    )


def test_a_block_of_a_page_is_replaced_and_the_rest_stays(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n```\n#ranks\nold\n```\nbetween\n```\n#ranks\nother\n```\n")
    demo._show(page, "#ranks", "#ranks\nnew\n")
    assert page.read_text() == "before\n```\n#ranks\nnew\n```\nbetween\n```\n#ranks\nother\n```\n"


def document(name, share, *warnings, above=""):
    comm = {name: share} if name in demo.COMM_SHARES else None
    return {
        "points": [{"world_size": 2, "comm": comm, name: share}],
        "quality": {"warnings": warnings},
        "roofline": {"above": above},
    }


SURE, UNSURE = ({"value": 1.05, "low": low, "high": 1.2} for low in (1.02, 0.99))


@pytest.mark.parametrize("name", [*demo.SHARES, *demo.COMM_SHARES])
def test_a_share_that_is_surely_above_one_needs_its_reason(name):
    assert list(demo.without_reason(document(name, SURE))) == [
        f"{name} at 2 ranks is 105.0% without a reason"
    ]
    assert not list(demo.without_reason(document(name, UNSURE)))
    told = document(name, SURE, f"{name} at 2 ranks lies above 100 %: caches", above="Winograd")
    assert not list(demo.without_reason(told))
