"""nccl-tests as people run it today: JSON, time stamps, iterations, launchers' tags, and mistakes of the start."""

import json
import re

import pytest
from support.commands import refused
from traces.machines.test_logs_as_found import HEAD, devices, log

from scaling.cli.main import main
from scaling.traces.machines.nccl_tests import parse_log

ROW = "  {m:>12} {c:>10} {kind} {t:8.2f} {a:7.2f} {b:7.2f}      0 {t:8.2f} {a:7.2f} {b:7.2f}      0"


def table(kind, factor, sizes=(1 << 20, 1 << 24, 1 << 28), parts=1, head=HEAD):
    """Rows of a collective that counts `parts` of its size, with busbw = factor x algbw."""
    lines = [head.rstrip()]
    for m in sizes:
        t = 20 + m / 1e5
        a = m / t / 1e3
        lines.append(ROW.format(m=m, c=m // 4 // parts, kind=kind, t=t, a=a, b=a * factor))
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("01_all_gather_sweep_mpi_suffix.md", [("all_gather", 2, 2), ("reduce_scatter", 2, 2)]),
        ("02_run7.log", [("broadcast", 2, 2)]),
        ("03_all_gather_ranks_in_count.log", [("all_gather", 16, 2)]),
        ("05_slow_ethernet_ranks_in_command.log", [("all_reduce", 8, 2)]),
        ("06_one_decimal.md", [("all_reduce", 16, None)]),
        ("07_timestamps.log", [("all_reduce", 8, 1)]),
        ("08_per_iteration.log", [("all_reduce", 8, 1)]),
        ("12_fit_above_best.log", [("all_reduce", 2, 2)]),
        ("13_all_operations.log", [("all_reduce", 8, 1)] * 4),
        (
            "15_blocks_without_headers.log",
            [("all_reduce", 8, 1), ("all_reduce", 16, 2), ("all_reduce", 32, 4)],
        ),
        ("16_two_ranks_one_gpu.log", [("all_reduce", 2, 1)]),
        ("17_nccl_tests_J.json", [("all_reduce", 8, 1)]),
        ("27_devices_before_next_table.md", [("all_reduce", 16, None), ("all_reduce", 72, 18)]),
    ],
)
def test_what_people_post(shared, file, expected):
    path = shared(f"wild/{file}")
    found = parse_log(path.read_text(), path.name)
    assert [(s.collective, s.world_size, s.hosts) for s in found] == expected
    for section in found:
        for mode in ("out-of-place", "in-place"):
            fit, best = section.fitted(mode), max(r.busbw_gb_s + r.rounded_gb_s for r in section.of(mode))
            assert fit is None or fit.busbw_gbit_s <= 8 * best


@pytest.mark.parametrize(
    ("command", "ranks", "hosts"),
    [
        ("mpirun -np 16 -N 8 ./all_reduce_perf -b 8 -n 20 -g 1", 16, 2),
        ("mpirun -np 2 -H a:1,b:1 ./all_reduce_perf_mpi -g 8", 16, 2),
        ("mpirun -np 8 -H a:8,b:8 all_reduce_perf", 8, 1),
        ("mpirun --map-by ppr:4:node -np 16 all_reduce_perf -t 1", 16, 4),
        ("mpiexec -n 16 --ppn 4 ./all_reduce_perf", 16, 4),
        ("srun -N2 --ntasks-per-node=8 --mpi=pmix all_reduce_perf -g 1", 16, 2),
        ("srun --nodes 2 -n 4 /opt/all_reduce_perf -g 4", 16, 2),
        ("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\nsrun all_reduce_perf", 16, 2),
        ("mpirun -np 16 \\\n  -npernode 8 \\\n  all_reduce_perf", 16, 2),
        ("$ ./all_reduce_perf -b 8 -e 8G -f 2 -g 8", 8, 1),
    ],
)
def test_ranks_and_hosts_of_a_command(command, ranks, hosts):
    (section,) = parse_log(f"{command}\n{log(ranks)}", "x.log")
    assert (section.world_size, section.hosts, section.world_from[:11]) == (ranks, hosts, "its command")


def test_a_command_that_the_bandwidths_contradict_is_not_believed():
    (section,) = parse_log(f"mpirun -np 8 all_reduce_perf\n{log(16)}", "x.log")
    assert (section.world_size, section.hosts) == (16, None)
    assert section.world_from.endswith("its command shows 8, which contradicts it")


@pytest.mark.parametrize(
    ("kind", "factor", "parts", "collective"),
    [
        ("float sum -1", 1.75, 1, "all_reduce"),
        ("float none 0", 1.0, 1, "broadcast"),
        ("float sum -1", 0.875, 8, None),  # reduce_scatter, or an all_to_all of an older version
        ("float none -1", 0.875, 8, None),  # all_gather or all_to_all
        ("float sum 0", 1.0, 1, None),  # reduce, or a broadcast of an older version
    ],
)
def test_the_shape_of_the_rows_names_a_collective_only_where_one_is_left(kind, factor, parts, collective):
    (section,) = parse_log(table(kind, factor, parts=parts), "run.log")
    assert section.collective == collective
    assert section.world_size == {"all_reduce": 8, "broadcast": None}.get(
        collective, parts if parts > 1 else None
    )


def test_a_name_of_the_file_that_the_rows_contradict_is_not_used():
    (section,) = parse_log(table("float none 0", 1.0), "allreduce.log")
    assert section.collective == "broadcast"


@pytest.mark.parametrize("tag", ["[1,0]<stdout>: ", "0: ", "[0] "])
def test_a_tag_within_a_row_and_a_row_in_two_lines(tag):
    lines = log(8).splitlines()
    cut = [line.index("-1") + 2 if "-1" in line else len(line) for line in lines]
    inside = "\n".join(f"{tag}{a[:k]} {tag}{a[k:]}" for a, k in zip(lines, cut, strict=True))
    apart = "\n".join(f"{tag}{a[:k]}\n{tag}{a[k:]}" for a, k in zip(lines, cut, strict=True))
    whole = parse_log(log(8), "x.log")[0].rows
    assert parse_log(inside, "x.log")[0].rows == parse_log(apart, "x.log")[0].rows == whole


def test_every_process_alone_is_said_with_its_remedy(tmp_path, capsys):
    each = f"{devices(range(1), range(1))}\n{table('float sum -1', 0.0)}"
    path = tmp_path / "2node_alone.log"
    path.write_text("\n".join(f"{line}\n{line}" for line in each.splitlines()))
    assert main(["import", "nccl-tests", str(path), "--into", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.count("# MISTAKE     every process ran alone, with one rank") == 1
    assert "MPI=1" in said
    assert "# topology    none written" in said


def test_one_gpu_used_twice_is_said_and_makes_no_topology(shared, tmp_path, capsys):
    path = shared("wild/16_two_ranks_one_gpu.log")
    assert main(["import", "nccl-tests", str(path), "--into", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sections"][0]["mistakes"][0].startswith("ranks 0, 1 use one GPU")
    assert found["topology"] is None


def test_older_device_lines_without_a_bus_or_a_mark_are_no_gpu_used_twice():
    lines = "\n".join(f"   Rank  {r} Pid  {r} on a device  {r} [0x00] Tesla V100" for r in range(8))
    (section,) = parse_log(f" Using devices\n{lines}\n{log(8)}", "x.log")
    assert (section.world_size, section.hosts, section.shared_devices) == (8, 1, ())


def test_no_topology_of_one_host_is_written_where_one_host_is_assumed(tmp_path, capsys):
    path = tmp_path / "run.log"
    path.write_text(log(8))
    assert main(["import", "nccl-tests", str(path), "--into", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "# hosts       1 (assumed: the log lists no devices)" in said
    assert "does not tell on how many hosts its 8 ranks ran" in said


def test_lines_of_nccl_beside_a_table_tell_its_ranks_and_hosts():
    line = "a:1:1 [0] NCCL INFO comm 0x55 rank 0 nRanks 8 nNodes 2 localRanks 4 localRank 0 MNNVL 0"
    (section,) = parse_log(f"{line}\n{log(8)}", "x.log")
    assert (section.hosts, section.hosts_from) == (2, "NCCL's log")
    (section,) = parse_log(
        f"a:1:1 [0] NCCL INFO Channel 00/0 : 3[3] -> 4[0] [send] via NET/IB/0\n{log(8)}", "x.log"
    )
    assert section.hosts is None


def test_a_jump_in_one_mode_alone_is_named_with_the_mode():
    lines = log(8).splitlines()
    size, rest = lines[-1].split("sum", 1)
    words = rest.split()
    words[5] = str(9 * float(words[5]))
    (section,) = parse_log("\n".join([*lines[:-1], f"{size}sum {' '.join(words)}"]), "x.log")
    assert [(c.kind, c.to_bytes, mode) for c, mode in section.cliffs] == [("jumps", 1 << 26, "in-place")]


@pytest.mark.parametrize(
    "damage",
    [
        lambda t: t[: len(t) // 2],
        lambda t: t.replace('"size"', '"sice"'),
        lambda t: json.dumps(json.loads(t) | {"average_bus_bandwidth": {"bandwidth": "n/a"}}),
    ],
)
def test_json_that_is_cut_off_or_of_another_kind_is_refused(shared, tmp_path, capsys, damage):
    path = tmp_path / "out.json"
    path.write_text(damage(shared("wild/17_nccl_tests_J.json").read_text()))
    assert "not the whole of what -J of nccl-tests writes" in refused(
        capsys, ["import", "nccl-tests", str(path)]
    )


def test_a_row_without_numbers_is_named_and_the_others_are_read(shared, tmp_path, capsys):
    whole = shared("wild/17_nccl_tests_J.json").read_text()
    path = tmp_path / "out.json"
    path.write_text(whole.replace('"bus_bw": 169.509139', '"bus_bw": "nan"', 1))
    (read,), (all_rows,) = parse_log(path.read_text(), "x.json"), parse_log(whole, "x.json")
    assert len(read.rows) == len(all_rows.rows) - 1
    assert main(["import", "nccl-tests", str(path), "--into", str(tmp_path)]) == 0
    assert "the row of 4 MiB has no number for out-of-place (nan)" in capsys.readouterr().out
    (text,) = parse_log(f"{log(8)}\n 1073741824 268435456 float sum -1 nan nan nan 0 9.0 120 210 0", "x.log")
    assert (len(text.of("in-place")), len(text.of("out-of-place"))) == (5, 4)
    assert text.cut == ["the row of 1 GiB has no number for out-of-place (nan)"]


def test_an_average_without_a_number_and_a_count_of_no_hosts_are_left_out():
    odd = "a:1:1 [0] NCCL INFO comm 0x55 rank 0 nRanks 0 nNodes 0 localRanks 0"
    (section,) = parse_log(f"{odd}\n{log(8)}\n# Avg bus bandwidth    :", "x.log")
    assert (section.world_size, section.average_gb_s) == (8, None)


@pytest.mark.parametrize(
    ("cut_by", "in_place_rows", "what"),
    [
        (len("      0"), 3, "check is"),  # before #wrong
        (len("      0") + 1, 2, "figures are"),  # within busbw, whose last digit may be gone
        (len("      0") + 12, 2, "figures are"),
    ],
)
def test_a_row_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path, capsys, cut_by, in_place_rows, what):
    path = tmp_path / "all_reduce.log"
    path.write_text(table("   float     sum      -1", 14 / 8)[:-cut_by])
    (read,) = parse_log(path.read_text(), path.name)
    assert len(read.of("out-of-place")) == 3
    assert len(read.of("in-place")) == in_place_rows
    assert main(["import", "nccl-tests", str(path)]) == 0
    assert f"the row of 256 MiB is cut off: its in-place {what} not there" in capsys.readouterr().out


def test_the_only_mode_of_a_row_is_told_by_its_columns():
    out_of_place = f"{1 << 24:12d}  {1 << 22:12d}     float     sum      -1   191.40   87.66  153.40       0"
    in_place = out_of_place.replace("-1 ", "-1" + " " * 33)
    for row, mode in ((out_of_place, "out-of-place"), (in_place, "in-place")):
        assert [r.mode for r in parse_log(HEAD + row, "x.log")[0].rows] == [mode]


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row.replace("-1 ", "-1[prterun-node1-7@1,0]<stdout>: "),
        lambda row: row.replace("float", "\x1b[1mfloat\x1b[0m"),
        lambda row: "| " + " | ".join(row.split()) + " |",
        lambda row: re.sub(r"\d{4,}(?=\s)", lambda m: f"{int(m[0]):,}", row),
    ],
    ids=["prte", "colours", "markdown", "commas"],
)
def test_what_a_launcher_a_terminal_or_a_page_puts_around_figures(change):
    plain = table("   float     sum      -1", 14 / 8)
    changed = "\n".join(line if "#" in line else change(line) for line in plain.splitlines())
    assert parse_log(changed, "x.log")[0].rows == parse_log(plain, "x.log")[0].rows


@pytest.mark.parametrize(
    ("dtype", "error", "wrong"),
    [
        ("half", "2e-03", 0),
        ("float", "1e-07", 0),
        ("float", "5e-04", None),  # 50 ranks or fewer
        ("float", "5e-01", 1),
        ("double", "1e-07", 1),
    ],
)
def test_the_older_error_column_is_judged_by_its_type(dtype, error, wrong):
    size = {"half": 2, "float": 4, "double": 8}[dtype]
    row = f"1048576 {1048576 // size} {dtype} sum 100.0 10.49 15.73 {error} 100.0 10.49 15.73 {error}"
    (table,) = parse_log(f"# Collective test starting: all_reduce_perf\n{row}\n", "x.log")
    assert [r.wrong for r in table.rows] == [wrong, wrong]
