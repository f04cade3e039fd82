"""One's own busbw beside what others reach on such a machine."""

from pathlib import Path
from statistics import median

import pytest

from scaling.analysis.network.links import (
    GIB,
    TABLE,
    Reached,
    beside,
    beside_best,
    beside_runs,
    expected,
    like,
    machine_of,
)
from scaling.analysis.network.nccl_log import Cards
from scaling.analysis.results import CurvePoint, Fabric, FabricLevel, Measured
from scaling.config.compose import requests
from scaling.units import format_bytes

PAGE = Path(__file__).parents[3] / "docs" / "links.md"


@pytest.mark.parametrize(
    ("device", "machine"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe"),
        ("NVIDIA GH200 120GB", "GH200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B200", "B200"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA GeForce GTX 1080", None),
    ],
)
def test_devices_as_drivers_name_them(device, machine):
    assert machine_of(device) == machine


def test_a_figure_beside_those_of_the_same_machine_and_size():
    said = beside("NVIDIA H100 80GB HBM3", 8, 1, "all_reduce", 8 * GIB, 298.0)
    assert said.startswith(
        "others reach 478.9 (476 to 480.2, 3 reports) GB/s in all_reduce on 8 x H100 SXM with NVLS"
    )
    assert "yours: 298 at 8 GiB, 62% of it" in said
    assert beside("NVIDIA H100 80GB HBM3", 8, 1, "all_reduce", GIB // 64, 298.0) is None
    assert beside("NVIDIA H100 80GB HBM3", 12, 1, "all_reduce", 8 * GIB, 298.0) is None


def test_less_than_half_is_said_with_the_cause_that_nccl_names_and_with_none_of_its_own():
    cause = ("ranks receive without GPUDirect RDMA: load nvidia_peermem",)
    on_two, cards = ("NVIDIA H100 80GB HBM3", 16, 2, "all_reduce", 2 * GIB), Cards(8, 400)
    assert beside(*on_two, 120.0, cause, cards).endswith(
        f"; less than half, and NCCL's log says why: {cause[0]}"
    )
    assert "less than half" not in beside(*on_two, 120.0, (), cards)
    assert "less than half" not in beside(*on_two, 400.0, cause, cards)
    # not below half of the slowest cards' figure
    assert "less than half" not in beside(*on_two, 180.0, cause)


@pytest.mark.parametrize(
    ("cards", "reach", "share"),
    [
        (Cards(8, 400), "others reach 453.5 (437.9 to 469.2, 2 reports) GB/s", "66% of it"),
        (Cards(32, 100), "others reach 453.5 (437.9 to 469.2, 2 reports) GB/s", "66% of it"),
        (Cards(8, 200), "others reach 338.8 GB/s", "89% of it"),
        (Cards(8, None), "others reach 338.8 with 8x200G, 469.2 with 8x400G (GB/s", None),
        (Cards(2, 25), "others reach 338.8 with 8x200G, 437.9 with 32x100G, 469.2 with 8x400G (GB/s", None),
        (None, "others reach 338.8 with 8x200G, 437.9 with 32x100G, 469.2 with 8x400G (GB/s", None),
    ],
)
def test_between_hosts_reports_of_such_cards_are_taken_or_the_range_by_cards(cards, reach, share):
    said = beside("NVIDIA H100 80GB HBM3", 16, 2, "all_reduce", 8 * GIB, 300.0, cards=cards)
    assert said.startswith(reach)
    assert (f"yours: 300 at 8 GiB, {share}" in said) if share else ("of it" not in said)
    if share is None:
        assert f"yours are {cards or 'not known'}; yours: 300" in said


def test_hosts_joined_by_nvlink_are_no_matter_of_cards():
    assert "88% of it" in beside("NVIDIA GB200", 72, 18, "all_reduce", 8 * GIB, 745.0)


def test_the_best_size_of_a_runs_sweep_is_held_beside_them():
    (request,) = requests(
        "plan", ["topology=local", "topology.device=cpu", "topology.ranks_per_host=8"]
    ).items
    curve = [
        CurvePoint(
            collective="all_reduce",
            bytes=size,
            time_us=Measured(1.0),
            algbw_gbit_s=Measured(1.0),
            busbw_gbit_s=Measured(8 * busbw),
        )
        for size, busbw in ((GIB // 64, 60.0), (4 * GIB, 231.0), (8 * GIB, 230.0))
    ]
    level = FabricLevel(
        world_size=8, name="local", alpha_us=None, busbw_gbit_s=None, nominal_gbit_s=None, curve=tuple(curve)
    )
    (text,) = beside_runs(Fabric(levels=(level,)), "NVIDIA A100-SXM4-80GB", request.spec)
    assert "on 8 x A100 SXM; yours: 231 at 4 GiB" in text
    assert beside_runs(Fabric(levels=(level,)), "cpu", request.spec) == ()


def test_the_best_size_that_the_table_has_is_taken():
    points = [
        ("all_reduce", 8, 1, GIB // 64, 500.0),
        ("all_reduce", 8, 1, 8 * GIB, 298.0),
        ("gather", 8, 1, GIB, 1.0),
    ]
    (text,) = beside_best("NVIDIA H100 80GB HBM3", points)
    assert "yours: 298 at 8 GiB" in text


def test_what_is_to_be_expected_of_a_machine_has_a_line_a_collective():
    lines = expected("NVIDIA A100-SXM4-80GB", 8, 1)
    assert [line.split(" in ")[1].split(" on ")[0] for line in lines] == [
        "all_reduce",
        "all_to_all",
        "broadcast",
    ]
    assert lines[0].startswith(
        "others reach 232.1 (200 to 235.3, 4 reports) GB/s in all_reduce on 8 x A100 SXM ("
    )
    assert expected("NVIDIA A100-SXM4-80GB", 12, 1) == expected("cpu", 8, 1) == ()


def _left_out(r: Reached) -> float | None:
    """How far a report lies from those of other sources with such cards; None where there are none."""
    size = r.bytes or 8 * GIB
    alike = [
        o
        for o in like(r.machine, r.gpus, r.hosts, r.collective, size)
        if o.source != r.source and (r.hosts == 1 or (r.cards and o.cards and r.cards.alike(o.cards)))
    ]
    return r.busbw_gb_s / median(o.busbw_gb_s for o in alike) - 1 if alike else None


def test_with_one_source_left_out_the_others_agree_as_the_page_says():
    off = [(r, by) for r in TABLE if (by := _left_out(r)) is not None]
    large = [by for r, by in off if r.hosts == 1 and (r.bytes or 8 * GIB) >= 4 * GIB]
    assert len(large) >= 10
    assert max(map(abs, large)) <= 0.016
    two = [by for r, by in off if r.hosts == 2]
    assert len(two) >= 8
    assert min(two) >= -0.13
    assert max(two) <= 0.265
    assert median(map(abs, two)) <= 0.08


def test_every_report_has_a_source_and_stands_on_the_page():
    text = PAGE.read_text()
    assert len({(r.machine, r.gpus, r.hosts) for r in TABLE}) >= 25
    for r in TABLE:
        size = "not told" if r.bytes is None else format_bytes(r.bytes)
        cards = "" if r.hosts == 1 else str(r.cards or "not told") if r.by_cards else "NVLink"
        cards += ", GPUDirect" if r.direct else ""
        row = f"{r.gpus} x {r.machine} | {r.hosts} | {cards} | {r.collective} | {size} | {r.busbw_gb_s:g}"
        assert f"| {row} |" in text
        assert r.source in text


@pytest.mark.parametrize("device", ["NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA A100-SXM4-40GB"])
def test_reports_of_one_machine_agree_as_the_page_says(device):
    figures = [r.busbw_gb_s for r in like(device, 8, 1, "all_reduce", 8 * GIB) if (r.bytes or 0) >= 4 * GIB]
    assert len(figures) >= 2
    assert all(abs(figure / median(figures) - 1) < 0.02 for figure in figures)
