"""Logs of nccl-tests as they are pasted: every shared one, then prefixes, prose, elided and wrong device lines."""

import csv
import re

import pytest

from scaling.cli.main import main
from scaling.traces.machines.nccl_tests import parse_log

HEAD = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""


def log(ranks, sizes=(1 << 20, 1 << 22, 1 << 24, 1 << 26), factor=2.0, us=lambda m: 20 + m / 1e5):
    """A table of a collective whose busbw is factor (n-1)/n of its algbw."""
    lines = [HEAD.rstrip()]
    for m in sizes:
        rate = m / us(m) / 1e3
        half = f"{us(m):8.2f} {rate:7.2f} {rate * factor * (ranks - 1) / ranks:7.2f}      0"
        lines.append(f"{m:>12} {m // 4:>13}     float     sum      -1 {half} {half}")
    return "\n".join(lines)


def devices(ranks, shown):
    lines = [
        f"#  Rank {r:>2} Group  0 Pid  {100 + r} on host{r // 8} device {r % 8:>2} [0x0{r % 8}] NVIDIA X"
        for r in ranks
    ]
    return "# Using devices\n" + "\n".join(
        line for line in lines if any(f"Rank {r:>2} " in line for r in shown)
    )


def test_every_shared_log_against_what_a_person_reads(shared):
    with shared("nccl_tests/index.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        path = shared(f"nccl_tests/{row['file']}")
        section = parse_log(path.read_text(errors="replace"), path.name)[int(row["table"]) - 1]
        assert (section.collective, section.world_size) == (row["collective"], int(row["ranks"])), path
        assert len(section.rows) == 2 * int(row["rows"])
        for mode, gbps, at in (
            ("out-of-place", "max_busbw_oop_GBps", "at_bytes"),
            ("in-place", "max_busbw_ip_GBps", "at_bytes_ip"),
        ):
            best = max(section.of(mode), key=lambda r: r.busbw_gb_s)
            assert (best.busbw_gb_s, best.bytes) == (float(row[gbps]), int(row[at]))
        assert section.contradicting == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gh200_alps_32node_128_cliff.txt", [("falls", 2**18), ("jumps", 2**27)]),
        ("gh200_alps_128node_512_hole_at_2gib.txt", [("falls", 2**18), ("jumps", 2**30), ("falls", 2**31)]),
        ("a100_polaris_8node_32_steps.dat", [("falls", 2**17), ("falls", 2**20)]),
        ("h100_8gpu_dgxc_0.log", []),
    ],
)
def test_the_cliffs_that_the_readme_names(shared, capsys, tmp_path, name, expected):
    path = shared(f"nccl_tests/{name}")
    (section,) = parse_log(path.read_text(), path.name)
    assert [(c.kind, c.from_bytes) for c, _ in section.cliffs] == expected
    assert main(["import", "nccl-tests", str(path), "--into", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("# cliff ") == len(expected)


@pytest.mark.parametrize(
    "prefix",
    [
        "[1,0]<stdout>:",
        "   [1,12]<stdout>: ",
        "0: ",
        " 3: ",
        "nccl-launcher-abc12: ",
        "2026-05-01T12:00:01.123Z ",
        "[2026-05-01 12:00:01] ",
        "[pod/nccl-test-0/main] ",
        "> ",
        "| ",
        "\t",
    ],
)
def test_whatever_stands_before_a_line(prefix):
    whole = f"{devices(range(8), range(8))}\n{log(8)}\n# Avg bus bandwidth    : 93.4"
    text = "\n".join(prefix + line for line in whole.splitlines())
    (section,) = parse_log(f"Here is what I got:\n{text}\nand 10 20 times as slow as before\n", "x.log")
    assert (len(section.rows), len(section.devices), section.average_gb_s) == (8, 8, 93.4)
    assert (section.world_size, section.collective) == (8, "all_reduce")


def test_the_middle_of_the_devices_is_left_out():
    """Fewer lines than ranks: the last rank's number shows how many there are."""
    shown = devices(range(32), (0, 1, 30, 31)).replace("Rank 30", "Rank 30")
    (section,) = parse_log(f"# all_gather_perf\n{shown}\n...\n{log(32, factor=1.0)}", "2node.log")
    assert (section.collective, section.world_size, section.hosts) == ("all_gather", 32, 2)


def test_the_numbers_win_over_a_wrong_list_of_devices():
    text = f"{devices(range(8), range(8))}\n{log(16)}"
    (section,) = parse_log(text, "x.log")
    assert (section.collective, section.world_size, section.hosts) == ("all_reduce", 16, None)
    assert section.world_from.endswith("its device lines show 8, which contradicts it")


def test_ranks_that_rounding_leaves_open_stay_the_devices():
    many = log(512, sizes=(1 << 20, 1 << 21), us=lambda m: m / 2e3)
    text = f"{devices(range(500), (0, 499))}\n{many}"
    (section,) = parse_log(text, "x.log")
    assert (section.world_size, section.world_from) == (500, "its device lines")


def test_a_row_that_contradicts_itself_is_said(tmp_path, capsys):
    text = log(8)
    row = text.splitlines()[4]
    broken = re.sub(r"(-1\s+)(\d)", lambda hit: f"{hit[1]}{(int(hit[2]) + 3) % 10}", row, count=1)
    path = tmp_path / "a.log"
    path.write_text(text.replace(row, broken))
    assert main(["import", "nccl-tests", str(path), "--into", str(tmp_path)]) == 0
    assert "1 of 8 rows contradict themselves, the first at 4 MiB" in capsys.readouterr().out


def test_several_collectives_under_one_prefix_with_prose_between():
    parts = [
        ("all_reduce", log(4)),
        ("reduce_scatter", log(4, factor=1.0)),
        ("all_to_all", log(4, factor=1.0)),
    ]
    text = "\n".join(
        f"next one\n$ mpirun ./{name.replace('_to_', 'to')}_perf -b 8\n{table}" for name, table in parts
    )
    found = parse_log("\n".join("0: " + line for line in text.splitlines()), "all.log")
    assert [(s.collective, s.world_size, len(s.rows)) for s in found] == [
        ("all_reduce", 4, 8),
        ("reduce_scatter", 4, 8),
        ("all_to_all", 4, 8),
    ]
