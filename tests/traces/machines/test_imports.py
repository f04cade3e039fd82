"""What tools wrote about machines, against the files' own figures."""

import json
import re
import shlex

import pytest
from omegaconf import OmegaConf
from support.commands import refused

from scaling.cli.main import main
from scaling.errors import InputError
from scaling.traces.machines.layout import Layout, levels, nvlinks
from scaling.traces.machines.nccl_tests import parse_log
from scaling.traces.machines.nccl_xml import parse_xml
from scaling.traces.machines.topo_matrix import parse_topo

NEW = """\
# nThread 1 nGpus 2 minBytes 1024 maxBytes 4194304 step: 4(factor) warmup iters: 5 iters: 20
# Using devices
#  Rank  0 Group  0 Pid  1 on a device  0 [0000:1a:00] NVIDIA X
#  Rank  1 Group  0 Pid  2 on a device  1 [0000:1b:00] NVIDIA X
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1    10.00    0.10    0.10      0    10.00    0.10    0.10    {w}
     1048576        262144     float     sum      -1    110.0    9.53    9.53      0    110.0    9.53    9.53      0
     4194304       1048576     float     sum      -1    410.0   10.23   10.23      0    410.0   10.23   10.23      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 6.62
"""


@pytest.fixture
def imported(tmp_path, monkeypatch, capsys):
    """imported(kind, path) -> (exit status, the document, the topology or None)."""
    monkeypatch.chdir(tmp_path)

    def run(kind, path):
        code = main(["import", kind, str(path), "--json"])
        document = json.loads(capsys.readouterr().out)
        topology = document["topology"] and OmegaConf.load(document["topology"])
        return code, document, topology

    return run


@pytest.mark.parametrize(
    ("name", "ranks", "rows", "collective"),
    [
        ("a100_sxm4_8gpu_allreduce_superbench.log", 8, 35, "all_reduce"),
        ("a100_sxm4_8gpu_alltoall_superbench.log", 8, 34, "all_to_all"),
        ("h100_8gpu_dgxc_0.log", 8, 32, "all_reduce"),
        ("h100_p5_2node_efa_aws_0.log", 16, 7, "all_reduce"),
        ("rtx4090_2gpu_pcie_kalavai_0.log", 2, 29, "all_reduce"),
    ],
)
def test_every_log(shared, name, ranks, rows, collective):
    path = shared(f"nccl_tests/{name}")
    text = path.read_text()
    (section,) = parse_log(text, path.name)
    assert (section.world_size, section.collective) == (ranks, collective)
    printed = len(re.findall(r"^\s*(?:\[1,0\]<stdout>:)?\s*\d+ +\d+ +float ", text, re.MULTILINE))
    assert len(section.rows) == 2 * printed
    assert printed in (rows, rows - 1, rows + 1)
    factor = {"all_reduce": 2, "all_to_all": 1}[collective] * (ranks - 1) / ranks
    for row in section.rows:
        assert row.busbw_gb_s == pytest.approx(factor * row.bytes / row.time_us / 1e3, rel=0.005, abs=0.006)
    if not section.elided:
        mean = sum(row.busbw_gb_s for row in section.rows) / len(section.rows)
        assert mean == pytest.approx(section.average_gb_s, rel=1e-3)
    largest = max(section.of("out-of-place"), key=lambda r: r.bytes)
    fit = section.fitted("out-of-place")
    assert fit.busbw_gbit_s == pytest.approx(largest.busbw_gb_s * 8, rel=0.02)


def test_devices_and_checks_of_a_log(shared):
    path = shared("nccl_tests/h100_8gpu_dgxc_0.log")
    (section,) = parse_log(path.read_text(), path.name)
    assert [d.rank for d in section.devices] == list(range(8))
    assert {(d.host, d.name) for d in section.devices} == {("pool0-01806", "NVIDIA H100 80GB HBM3")}
    assert section.devices[7].bus == "0000:e4:00"
    assert all(r.wrong == 0 for r in section.rows)
    old = shared("nccl_tests/a100_sxm4_8gpu_alltoall_superbench.log")
    assert all(r.wrong is None for r in parse_log(old.read_text(), old.name)[0].rows)


def test_a_fit_gives_back_what_went_in():
    (section,) = parse_log(NEW.replace("{w}", "0"), "x.log")
    # T = 2 (alpha + m beta / 2) with alpha 5 us, and no rate above the best row's
    fit = section.fitted("in-place")
    assert fit.busbw_gbit_s == pytest.approx(8 * 4194304 / 410 / 1e3)
    assert fit.alpha_us == pytest.approx(5, rel=0.2)


def test_several_collectives_with_a_launchers_prefix_and_text_around():
    second = NEW.replace("{w}", "0").replace("sum      -1", "none     -1")
    text = f"$ ./all_reduce_perf -b 1K\n{NEW.replace('{w}', '0')}\nbye\n$ ./all_gather_perf\n{second}"
    text = "\n".join(f"[1,0]<stdout>:{line}" for line in text.splitlines())
    found = parse_log(text, "both.log")
    assert [s.collective for s in found] == ["all_reduce", "all_gather"]
    assert [len(s.rows) for s in found] == [6, 6]
    assert [len(s.devices) for s in found] == [2, 2]


def test_corrupt_data_are_said_and_make_no_topology(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.log").write_text(NEW.replace("{w}", "3"))
    assert main(["import", "nccl-tests", "bad.log"]) == 1
    said = capsys.readouterr()
    assert "CORRUPT     3 wrong values at 1 KiB in-place" in said.out
    assert "values came out wrong" in said.err
    assert not (tmp_path / "conf").exists()


def test_a_log_becomes_a_topology_that_plan_draws(tmp_path, imported, capsys):
    (tmp_path / "mine.log").write_text(NEW.replace("{w}", "0"))
    code, document, topology = imported("nccl-tests", tmp_path / "mine.log")
    assert (code, document["sections"][0]["world_size"]) == (0, 2)
    assert topology.ranks_per_host == 2
    assert topology.levels[0].rate.endswith("gbit")
    assert main(["plan", "--config-dir", "conf", "topology=mine"]) == 0
    drawn = capsys.readouterr().out
    assert "measured       [0 1]" in drawn
    assert "us a hop" in drawn


def test_the_bandwidth_is_what_the_log_reached(shared, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["import", "nccl-tests", str(shared("nccl_tests/h100_8gpu_dgxc_0.log"))]) == 0
    said = capsys.readouterr().out
    assert "3841 Gbit/s (480.2 GB/s) for large ones (the log's best busbw, at 8 GiB)" in said
    assert " 62636.00       2194.24       3839.92   479.99  0" in said  # GB/s beside Gbit/s
    level = OmegaConf.load("conf/topology/h100_8gpu_dgxc_0.yaml").levels[0]
    assert float(level.rate.removesuffix("gbit")) == pytest.approx(3841, rel=0.002)


@pytest.mark.parametrize(
    ("name", "ranks", "hosts"),
    [
        ("h100_p5_2node_efa_aws_0.log", 16, 2),
        ("gh200_alps_2node_8_cross_nic.txt", 8, 2),
        ("gh200_alps_32node_128_cliff.txt", 128, 32),
        ("gh200_alps_128node_512_hole_at_2gib.txt", 512, 128),
        ("a100_polaris_8node_32_steps.dat", 32, 8),
    ],
)
def test_a_log_of_several_hosts_makes_several_hosts(shared, imported, name, ranks, hosts):
    _, document, topology = imported("nccl-tests", shared(f"nccl_tests/{name}"))
    section = document["sections"][0]
    assert (section["world_size"], section["hosts"]) == (ranks, hosts)
    assert (topology.hosts, topology.ranks_per_host) == (hosts, ranks // hosts)
    assert topology.link.rate.endswith("gbit")
    assert len(topology.levels) == 0


def test_a_latency_that_a_log_does_not_show_is_unknown(shared, imported):
    _, document, topology = imported("nccl-tests", shared("nccl_tests/h100_p5_2node_efa_aws_0.log"))
    assert document["sections"][0]["fits"][0]["alpha_us"] is None  # it begins at 64 MiB
    assert "latency_us" not in topology.link


def test_a_bandwidth_that_falls_for_larger_messages_is_said(shared, capsys, tmp_path):
    path = shared("nccl_tests/gh200_alps_32node_128_cliff.txt")
    assert main(["import", "nccl-tests", str(path), "--into", str(tmp_path)]) == 0
    assert (
        "351.9 Gbit/s (43.99 GB/s) for large ones (the log's best busbw, at 128 MiB, falling to"
        in capsys.readouterr().out
    )


def test_many_ranks_on_nobody_knows_how_many_hosts_make_no_topology(shared, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = shared("nccl_tests/h100_p5_2node_efa_aws_0.log").read_text()
    (tmp_path / "all_reduce.log").write_text(text)
    assert main(["import", "nccl-tests", "all_reduce.log"]) == 0
    assert "none written: the log does not tell on how many hosts its 16 ranks ran" in capsys.readouterr().out
    assert not (tmp_path / "conf").exists()


@pytest.mark.parametrize("into", ["machines", "machines/topology", "with space"])
def test_the_command_that_an_import_suggests_works(into, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.log").write_text(NEW.replace("{w}", "0"))
    assert main(["import", "nccl-tests", "mine.log", "--into", into]) == 0
    suggested = capsys.readouterr().out.strip().splitlines()[-1].partition(": ")[2]
    assert main(shlex.split(suggested)[1:]) == 0


def test_nvswitch(shared, imported, capsys):
    code, document, topology = imported("topo", shared("topo_m/mle_2.txt"))
    assert (code, topology.ranks_per_host) == (0, 8)
    assert {p["link_class"] for p in document["pairs"]} == {"NV12"}
    assert [(v.link_class, v.ranks, v.rate) for v in topology.levels] == [("NV12", 8, "2400gbit")]
    assert topology.numa == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert main(["plan", "--config-dir", "conf", "topology=mle_2"]) == 0
    assert "nvlink NV12    [0-7]  2.4 Tbit/s a rank" in capsys.readouterr().out


def test_a_hybrid_cube_mesh(shared, imported):
    _, document, topology = imported("topo", shared("topo_m/v100_dgx1_hybrid_cube_0.txt"))
    pairs = {(p["a"], p["b"]): p["link_class"] for p in document["pairs"]}
    assert (pairs[0, 3], pairs[0, 4], pairs[0, 5]) == ("NV2", "NV2", "SYS")
    assert topology.levels[0].rate == "1200gbit"  # six NVLinks of 25 GB/s
    assert (topology.nics[0].name, topology.nics[0].near, topology.nics[0].link_class) == (
        "mlx5_0",
        [2, 3],
        "PIX",
    )
    assert topology.numa == [[0, 1, 2, 3], [4, 5, 6, 7]]  # by their cores


def test_pairs_under_switches_and_what_no_matrix_tells(shared, imported):
    topology = imported("topo", shared("topo_m/pro6000_4gpu_pix_pairs_sys.txt"))[2]
    assert [(v.link_class, v.ranks, v.rate) for v in topology.levels] == [("PIX", 2, None), ("SYS", 4, None)]
    assert topology.islands == [[0, 1], [2, 3]]


def test_network_cards(shared, imported):
    topology = imported("topo", shared("topo_m/rtx4090_8gpu_all_sys_nics.txt"))[2]
    assert [(n.name, n.near, n.link_class) for n in topology.nics] == [
        (f"NIC{k}", [6], "PHB") for k in range(4)
    ]
    assert topology.numa == [[k] for k in range(8)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aws_p4d-24xl-topo.xml", [("PIX", 2, "126.03"), ("PHB", 4, "126.03"), ("SYS", 8, "126.03")]),
        ("azure_ndv4-topo.xml", [("PIX", 2, "252.06"), ("SYS", 8, "252.06")]),
        ("rocm_topo_8p_pcie.xml", [("PXB", 4, "126.03"), ("PHB", 8, "126.03")]),
    ],
)
def test_every_topology_xml(shared, imported, name, expected):
    code, document, topology = imported("nccl-xml", shared(f"topo_xml/{name}"))
    assert (code, document["devices"]) == (0, 8)
    found = [(v.link_class, v.ranks, f"{float(v.rate.removesuffix('gbit')):.2f}") for v in topology.levels]
    # 8 and 16 GT/s x 16 lanes x 128/130
    assert [f[:2] for f in found] == [e[:2] for e in expected]
    assert [float(f[2]) for f in found] == pytest.approx([float(e[2]) for e in expected], abs=0.05)
    text = shared(f"topo_xml/{name}").read_text()
    assert len(topology.nics) == len(re.findall(r'class="0x020[07]', text))


def test_a_card_s_speed_is_read(shared, imported):
    topology = imported("nccl-xml", shared("topo_xml/rocm_topo_8p_pcie.xml"))[2]
    (card,) = topology.nics
    assert (card.name, card.rate, card.near) == ("mlx5_0", "100gbit", [0, 1, 2, 3])


@pytest.mark.parametrize(("sm", "rate"), [(80, 600e9), (86, 337.5e9), (90, 600e9)])
def test_a_ga102_has_slower_nvlinks_than_others_of_its_generation(sm, rate):
    """14.0625 GB/s a link and direction, by NVIDIA's whitepaper."""
    gpu = '<pci busid="0{d}:00.0" class="0x030200"><gpu dev="{d}" sm="{sm}">{l}</gpu></pci>'
    links = [f'<nvlink target="0{1 - d}:00.0" count="3" tclass="0x030200"/>' for d in range(2)]
    inside = "".join(gpu.format(d=d, sm=sm, l=links[d]) for d in range(2))
    _, (made, *_), _ = parse_xml(f'<system version="1"><cpu numaid="0">{inside}</cpu></system>', "x.xml")
    assert (made.link_class, made.rate_bit_s) == ("NV3", rate)


def test_nvlinks_of_a_dump():
    gpu = '<pci busid="{b}" class="0x030200"><gpu dev="{d}" sm="90">{l}</gpu></pci>'
    switch = '<nvlink target="ff" count="18" tclass="0x068000"/>'
    inside = "".join(gpu.format(b=f"0{k}:00.0", d=k, l=switch) for k in range(4))
    text = f'<system version="1"><cpu numaid="0">{inside}</cpu></system>'
    layout, made, left = parse_xml(text, "x.xml")
    assert set(layout.pairs.values()) == {"NV18"}
    assert [(m.link_class, m.ranks, m.rate_bit_s) for m in made] == [("NV18", 4, 18 * 200 * 10**9)]
    assert left == ()


def test_a_graph_is_refused_as_what_it_is(shared, capsys):
    refused(capsys, ["import", "nccl-xml", str(shared("topo_xml/azure_ncv4-graph.xml"))], "an NCCL graph")


def test_tabs_escapes_and_a_legend_of_cards():
    text = (
        "$ nvidia-smi topo -m\n\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m\n"
        "GPU0\t X \tNV4\tPIX\t0-7\t0\nGPU1\tNV4\t X \tSYS\t8-15\t1\nNIC0\tPIX\tSYS\t X \n\n"
        "Legend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n\n"
        "NIC Legend:\n\n  NIC0: mlx5_bond_0\n"
    )
    found = parse_topo(text, "x")
    assert found.pairs == {(0, 1): "NV4"}
    assert (found.nics[0].name, found.nics[0].near) == ("mlx5_bond_0", (0,))
    assert found.numa == ((0,), (1,))
    assert nvlinks(found)[0] == 4 * 200 * 10**9


def test_groups_that_are_no_level_are_said():
    pairs = {(0, 1): "SYS", (0, 2): "PIX", (0, 3): "SYS", (1, 2): "SYS", (1, 3): "PIX", (2, 3): "SYS"}
    made, left = levels(Layout(devices=4, pairs=pairs, numa=(), nics=(), notes=()), lambda _: (None, ""))
    assert [(m.link_class, m.ranks) for m in made] == [("SYS", 4)]
    assert left == ("PIX joins devices whose numbers are not consecutive: left out of the levels",)


REFUSED = [
    ("topo", "nothing here", "no header with GPU0"),
    ("topo", "      GPU0 GPU1\nGPU0 X NV1\n", "no row of GPU1"),
    ("topo", "      GPU0 GPU1\nGPU0 X WAT\nGPU1 WAT X\n", "'WAT' in the column of GPU1 is no class"),
    ("topo", "      GPU0 GPU1\nGPU0 X\nGPU1 SYS X\n", "1 of 2 columns"),
    ("nccl-xml", "<system>", "not XML"),
    ("nccl-xml", "<system/>", "no GPU in it"),
    ("nccl-xml", "<html/>", "its root is <html>"),
    ("nccl-xml", '<!DOCTYPE a [<!ENTITY b "c">]><system/>', "declares entities"),
    ("nccl-tests", "hello", "no row of a bandwidth table"),
    ("pdf", "", "one of nccl-tests, topo, nccl-xml"),
]


@pytest.mark.parametrize(("kind", "text", "why"), REFUSED)
def test_other_files_are_refused_in_one_line(tmp_path, monkeypatch, capsys, kind, text, why):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text(text)
    refused(capsys, ["import", kind, "file"], why)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


GPUS = "".join(f'<pci busid="{k}" class="0x030200"><gpu dev="{k}"/></pci>' for k in range(500))


@pytest.mark.parametrize(
    ("inside", "why"),
    [
        ('<pci class="0x060400">' * 50_000 + "</pci>" * 50_000, "nested more than 64 levels deep"),
        ('<pci class="0x060400"/>' * 50_000, "more than 20000 elements"),
        (f"{GPUS}<pci><nic>{'<net/>' * 5_000}</nic></pci>", "5000 network cards in one host"),
        (GPUS + GPUS, "1000 GPUs in one host"),
    ],
    ids=["deep", "wide", "cards", "GPUs"],
)
def test_a_machine_larger_than_any_is_refused_at_once(inside, why):
    with pytest.raises(InputError, match=why):
        parse_xml(f'<system version="1"><cpu numaid="0">{inside}</cpu></system>', "x.xml")


def test_a_matrix_larger_than_any_is_refused():
    with pytest.raises(InputError, match="900 devices in one host"):
        parse_topo("\t".join(f"GPU{k}" for k in range(900)), "topo.txt")


def test_escape_sequences_of_a_log_do_not_reach_the_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "all_reduce.txt"
    path.write_text(NEW.format(w=0).replace("NVIDIA X", "NVIDIA \x1b[2J\x1b]0;title\x07\u202eX"))
    assert main(["import", "nccl-tests", str(path)]) == 0
    assert "rank 0: NVIDIA X [0000:1a:00] on a\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "nics"),
    [
        ("20_topo_glued_nics.txt", 13),
        ("controls/21_topo_glued_affinity.txt", 8),
        ("controls/22_topo_16gpu_mlx.txt", 10),
        ("controls/23_topo_trailing_blanks.txt", 1),
        ("controls/29_topo_one_gpu.txt", 1),
    ],
)
def test_cards_whose_names_touch_are_apart(shared, name, nics):
    assert len(parse_topo(shared(f"wild/{name}").read_text(), name).nics) == nics


def test_the_matrix_of_rocm_smi(shared, imported):
    code, document, topology = imported("topo", shared("wild/25_rocm_showtopo_xgmi.txt"))
    assert (code, document["kind"], document["devices"]) == (0, "rocm-smi --showtopo", 4)
    assert {pair["link_class"] for pair in document["pairs"]} == {"XGMI"}
    assert document["numa"] == [[0, 1], [2, 3]]
    assert topology.levels[0].rate is None


ADDRESSES = ("0000:0d:00.0", "0000:26:00.0", "0000:5d:00.0")


def amd_smi(link_type):
    """`amd-smi topology` of three GPUs: a table of hops before that of link types."""
    head = " " * 13 + " ".join(ADDRESSES)
    tables = [
        ("HOPS TABLE:", "0", "1"),
        ("LINK TYPE TABLE:", "SELF", link_type),
        ("NUMA BW TABLE:", "N/A", "N/A"),
    ]
    return "\n".join(
        line
        for title, own, other in tables
        for line in (
            title,
            head,
            *(" ".join([a, *(own if a == b else other for b in ADDRESSES)]) for a in ADDRESSES),
        )
    )


AMD_JSON = json.dumps(
    [
        {
            "gpu": a,
            "bdf": ADDRESSES[a],
            "links": [{"gpu": b, "link_type": "SELF" if a == b else "XGMI"} for b in range(3)],
        }
        for a in range(3)
    ]
)
ROCM_JSON = json.dumps(
    {f"card{k}": {"(Topology) Numa Node": str(k // 2), "(Topology) Numa Affinity": "0"} for k in range(3)}
    | {
        "system": {
            f"(Topology) Link type between DRM devices {a} and {b}": "XGMI"
            for a in (0, 1)
            for b in (1, 2)
            if a < b
        }
    }
)


@pytest.mark.parametrize(
    ("text", "tool", "numa"),
    [
        (amd_smi("XGMI"), "amd-smi topology", []),
        (AMD_JSON, "amd-smi topology", []),
        (ROCM_JSON, "rocm-smi --showtopo", [[0, 1], [2]]),
    ],
    ids=["amd-smi", "amd-smi json", "rocm-smi json"],
)
def test_what_amds_tools_write(tmp_path, imported, capsys, text, tool, numa):
    path = tmp_path / "topo.txt"
    path.write_text(text)
    assert "scaling import topo FILE reads it" in refused(capsys, ["trace", str(path)])
    code, document, topology = imported("topo", path)
    assert (code, document["kind"], document["devices"], document["numa"]) == (0, tool, 3, numa)
    assert {pair["link_class"] for pair in document["pairs"]} == {"XGMI"}
    assert topology.levels[0].ranks == 3


def test_pcie_of_amd_smi_is_between_unknown_nodes_and_no_link_is_refused():
    layout = parse_topo(amd_smi("PCIE"), "x.txt")
    assert set(layout.pairs.values()) == {"SYS"}
    assert layout.notes[0].startswith("AMD's tools tell PCIE alone")
    one = "\n".join(["LINK TYPE TABLE:", f" {ADDRESSES[0]}", f"{ADDRESSES[0]} SELF"])
    assert (
        parse_topo(one, "x.txt").devices
        == parse_topo('[{"links": [{"link_type": "SELF"}]}]', "x.txt").devices
        == 1
    )
    with pytest.raises(InputError, match="the row of GPU0 has no link type to GPU2"):
        parse_topo(amd_smi("PCIE").replace("SELF PCIE PCIE", "SELF PCIE N/A"), "x.txt")


@pytest.mark.parametrize(("name", "gb_s"), [("NVIDIA B200", 900), ("NVIDIA H100 80GB HBM3", 450), ("", 450)])
def test_nvlinks_rate_by_the_name_of_the_gpu(tmp_path, imported, name, gb_s):
    path = tmp_path / "topo.txt"
    path.write_text(f"| 0  {name} |\n\tGPU0\tGPU1\nGPU0\tX\tNV18\nGPU1\tNV18\tX\n")
    _, document, _ = imported("topo", path)
    assert document["levels"][0]["rate_bit_s"] == gb_s * 8e9
    assert ("which the file names" in document["levels"][0]["source"]) == bool(name)


def test_the_matrix_of_the_first_of_several_tasks_is_read(tmp_path):
    plain = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\nGPU0\t X \tNV18\tPIX\t0-7\nGPU1\tNV18\t X \tSYS\t8-15\n"
    plain += "\n  NIC0: mlx5_0\n"
    labelled = "\n".join(f"{task}: {line}" for task in (0, 1) for line in plain.splitlines())
    assert parse_topo(labelled, "x.txt") == parse_topo(plain, "x.txt")
    assert parse_topo(labelled, "x.txt").nics[0].name == "mlx5_0"
