"""What is read back beside the rank files.

Runs kept by name, found again by machine and model, and the gate on them, from the command line.
"""

import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from support.commands import refused
from support.tables import collected

from scaling.analysis.results import PeakMemory
from scaling.cli.main import main
from scaling.cli.pipeline import read_analysis, rebuild
from scaling.records import baselines
from scaling.records.files import add_line, write_json
from scaling.records.paths import RunFolder
from scaling.report.findings import memory_line

MIB = 2**20


@pytest.fixture
def run(cluster, simulate, tmp_path):
    folder = RunFolder(tmp_path / "run")
    simulate(cluster.Truth(world_sizes=(1, 2), hosts=2, rounds=3), folder.path)
    return folder


def noted(peak, communicators=None):
    return {"peak_bytes": peak, "communicators_bytes": communicators}


def test_memory_is_that_of_the_rank_that_held_most_at_each_world_size(run):
    launch = run.launch(0)
    sizes = ({"1": noted(900 * MIB), "2": noted(500 * MIB, 7 * MIB)}, {"2": noted(600 * MIB, 6 * MIB)})
    for rank, held in enumerate(sizes):
        add_line(launch.memories(rank), {"rank": rank, "world_sizes": held})
    one, two = rebuild(run).analysis.points
    assert one.memory == PeakMemory(peak_bytes=900 * MIB)
    assert two.memory == PeakMemory(peak_bytes=600 * MIB, communicators_bytes=7 * MIB)
    said = " ".join(run.report_txt.read_text().split())
    assert "600 MiB a rank at most (resident); 7 MiB for the group's communicator" in said


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"rank": 0, "peak_bytes": 5}', '{"rank": 0, "world_sizes": {"1": {"peak_bytes": null}}}'],
)
def test_where_nothing_was_noted_nothing_is_said(run, text):
    run.launch(0).memories(0).write_text(text)
    analysis = rebuild(run).analysis
    assert {p.memory for p in analysis.points} == {PeakMemory()}
    assert "a rank at most" not in run.report_txt.read_text()


def test_memory_in_words():
    assert memory_line(PeakMemory(peak_bytes=3 * MIB), "cuda") == "3 MiB a rank at most (allocated by torch)"


# NCCL's own log

LOG = """\
node0:41:41 [0] NCCL INFO NCCL version 2.27.5+cuda12.9
node0:41:97 [0] NCCL INFO ncclCommInitRank comm 0x55d0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 - Init START
node0:41:97 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
node0:41:97 [0] NCCL INFO NVLS comm 0x55d0 headRank 0 nHeads 2 buffSize 1048576
"""


def test_the_way_that_nccl_took_stands_in_every_report(cluster, simulate, tmp_path):
    folder = RunFolder(tmp_path / "run")
    simulate(cluster.Truth(world_sizes=(1, 2), hosts=2, rounds=3, channels=1), folder.path)
    folder.launch(0).nccl_log("node0", "41").write_text(LOG)
    nccl = rebuild(folder).analysis.fabric.nccl
    assert (nccl.version, nccl.groups[0].transports, nccl.groups[0].in_network) == (
        "2.27.5",
        ("NET/Socket",),
        ("NVLS",),
    )
    for report in (folder.report_txt, folder.report_html, folder.report_md):
        said = " ".join(report.read_text().split())
        assert "NCCL 2.27.5, 2 ranks: NET/Socket; with NVLS the switches add up" in said
    assert read_analysis(folder).fabric.nccl == nccl


def test_a_slow_path_is_laid_beside_what_nccl_says_it_took(cluster, simulate, tmp_path):
    folder = RunFolder(tmp_path / "run")
    simulate(cluster.Truth(world_sizes=(2,), hosts=2, rounds=3, channels=1), folder.path)
    plan = json.loads(folder.plan.read_text())
    plan["spec"]["topology"]["link"]["rate_bit_s"] *= 4
    folder.plan.write_text(json.dumps(plan))
    folder.launch(0).nccl_log("node0", "41").write_text(LOG)
    (slow,) = [v for v in rebuild(folder).analysis.verdicts if v.cause == "slow_path"]
    assert slow.confidence == "high"
    assert "NCCL's log names NET/Socket" in slow.evidence
    plan["spec"]["topology"]["backend"] = "gloo"
    folder.plan.write_text(json.dumps(plan))
    (slow,) = [v for v in rebuild(folder).analysis.verdicts if v.cause == "slow_path"]
    assert slow.confidence == "medium"  # its copies take processor time, too
    assert any("the processors cannot send faster" in line for line in slow.evidence)


def test_gloo_has_no_such_log(run):
    run.launch(0).nccl_log("node0", "41").write_text(LOG)
    assert rebuild(run).analysis.fabric.nccl is None


# Telemetry


def sampled(cluster, folder, fake_nvml, mhz):
    """Each host has one GPU that told its clock (`mhz` by arm, else 2000) ten times a block."""
    from scaling.hardware.devices import Host
    from scaling.hardware.nvml import Gpus
    from scaling.hardware.sampler import head, sample

    launch, blocks = folder.launch(0), collected(folder).blocks
    for rank in range(2):
        nvml = fake_nvml(1)
        gpus, host = Gpus(nvml), Host(folder.path)  # no /proc there: nothing of this machine
        path = launch.envs(rank) if rank else launch.env(0)
        cluster.write_facts(launch, rank, json.loads(path.read_text()) | {"device_uuid": nvml.gpus[0].uuid})
        lines = [head(rank, gpus, host)]
        own = blocks.filter(pl.col("rank") == rank).sort("begin_ns")
        for arm, begin, end in own.select("arm", "host_begin_ns", "host_end_ns").iter_rows():
            nvml.gpus[0].sm_mhz = mhz.get(arm, 2000)
            nvml.gpus[0].reasons = 0x40 if arm in mhz else 0
            lines += [sample(gpus, host) | {"time_ns": begin + k * (end - begin) // 10} for k in range(1, 10)]
        launch.telemetry(rank).write_text("\n".join(map(json.dumps, lines)) + "\n")


def test_lower_clocks_and_power_come_from_the_hosts_telemetry(cluster, simulate, tmp_path, fake_nvml):
    folder = RunFolder(tmp_path / "run")
    truth = cluster.Truth(world_sizes=(2,), hosts=2, rounds=4, steps=30, neighbours=1.12, channels=1)
    simulate(truth, folder.path)
    sampled(cluster, folder, fake_nvml, dict.fromkeys(("bare_all", "ddp_solo", "plain", "probe"), 1800))
    analysis = rebuild(folder).analysis
    (point,) = analysis.points
    assert (point.clocks.alone_mhz.value, point.clocks.together_mhz.value) == (2000, 1800)
    assert point.loss.clocks.low > 0
    assert analysis.verdicts[0].share is not None
    (verdict,) = [v for v in analysis.verdicts if v.cause == "clocks"]
    assert "2000 MHz alone" in verdict.evidence[0]
    assert any("rank 1's device slowed itself down" in line for line in verdict.evidence)
    assert point.cost.power_w.value == pytest.approx(1300)  # two boards of 650 W
    assert point.cost.samples_per_joule.value == pytest.approx(point.samples_per_s.value / 1300)
    said = " ".join(folder.report_txt.read_text().split())
    assert "lower clocks" in said
    assert "of all ranks' GPU boards" in said
    assert "throttled:" in said


# Without status.json


def test_records_that_are_whole_speak_for_themselves(cluster, simulate, tmp_path):
    folder = RunFolder(tmp_path / "run")
    simulate(cluster.Truth(world_sizes=(1, 2), hosts=1, ranks_per_host=2, rounds=3), folder.path)
    folder.status.unlink()
    assert rebuild(folder).exit_code == 0
    last = folder.launch(0).rank(1)
    last.write_bytes(last.read_bytes()[:-40])
    trials = rebuild(folder).analysis.trials
    assert [(t.world_size, t.status, t.error) for t in trials] == [
        (1, "done", None),
        (2, "lost", "status.json is missing"),
    ]


# Clocks of other hosts

DAYS_NS = 3 * 86_400 * 10**9


def test_a_host_that_booted_days_before_changes_nothing_but_its_own_times(cluster, simulate, tmp_path):
    truth = cluster.Truth(world_sizes=(1, 2), hosts=2, rounds=4, block_noise=0.05, clock_bound_ns=0)
    found = []
    for name, ahead_ns in (("together", 0), ("apart", DAYS_NS)):
        folder = RunFolder(tmp_path / name)
        simulate(replace(truth, clock_offset_ns=(0, ahead_ns)), folder.path)
        folder.status.unlink()  # as of an own loop: how long it took is then told by the blocks
        found.append((rebuild(folder).analysis, collected(folder).blocks))
    (together, blocks), (apart, shifted) = found
    assert apart == together
    assert apart.run.duration_s < 60
    assert any("would take about" in line for line in apart.quality.reached)
    own = ["host_begin_ns", "host_end_ns"]
    assert shifted.drop(own).equals(blocks.drop(own))
    away = (shifted["host_begin_ns"] - blocks["host_begin_ns"]).to_list()
    assert away == [DAYS_NS * rank for rank in blocks["rank"]]


def test_telemetry_meets_the_blocks_of_its_own_host_whatever_its_clock(
    cluster, simulate, tmp_path, fake_nvml
):
    folder = RunFolder(tmp_path / "run")
    truth = cluster.Truth(world_sizes=(2,), hosts=2, rounds=3, channels=1, clock_offset_ns=(0, DAYS_NS))
    simulate(truth, folder.path)
    sampled(cluster, folder, fake_nvml, {"plain": 1800})
    (point,) = rebuild(folder).analysis.points
    assert [(t.rank, t.reasons) for t in point.clocks.throttled] == [(r, ("hw_thermal",)) for r in (0, 1)]


@pytest.fixture
def runs(cluster, simulate, tmp_path, monkeypatch):
    """runs(name, **truth): a simulated run, analysed, beside the others."""
    monkeypatch.chdir(tmp_path)

    def made(name, id_=None, **changes):
        folder = RunFolder(Path(name))
        changes = {"world_sizes": (1, 2), "hosts": 2, "rounds": 6, **changes}
        simulate(cluster.Truth(**changes), folder.path)
        named = id_ or name.replace("/", "-")
        for path in (folder.plan,):  # two runs have two ids
            path.write_text(path.read_text().replace('"simulated",\n "created"', f'"{named}",\n "created"'))
        rebuild(folder)
        return name

    return made


def document(capsys):
    return json.loads(capsys.readouterr().out)


def test_the_run_kept_last_is_the_baseline(runs, capsys):
    for seed, name in enumerate(("one", "two", "three")):
        runs(name, seed=seed)
    assert main(["compare", "one", "--baseline", "main", "--keep"]) == 0
    assert main(["compare", "two", "--baseline", "main", "--keep"]) == 0
    capsys.readouterr()
    assert main(["compare", "three", "--baseline", "main", "--json"]) == 0
    found = document(capsys)
    assert (found["base"]["id"], found["other"]["id"]) == ("two", "three")
    assert found["comparable"]
    assert {p["split"] for p in found["points"]} == {None}  # a baseline keeps no records of the ranks
    assert sorted(p.name for p in Path("runs/baselines/main").iterdir()) == ["one", "two"]


@pytest.mark.slow
def test_a_baseline_outlives_its_run(runs, capsys):
    import shutil

    runs("one")
    runs("two", seed=1)
    main(["compare", "one", "--baseline", "main", "--keep"])
    shutil.rmtree("one")
    assert main(["compare", "two", "--baseline", "main"]) == 0
    assert "other over base" in capsys.readouterr().out


@pytest.mark.slow
def test_another_model_or_machine_has_a_baseline_of_its_own(runs, capsys):
    runs("one")
    runs("two", batch=64)
    main(["compare", "one", "--baseline", "main", "--keep"])
    capsys.readouterr()
    refused(capsys, ["compare", "two", "--baseline", "main"], "--keep")
    env = RunFolder(runs("three", seed=2)).launch(0).env(0)
    env.write_text(json.dumps(json.loads(env.read_text()) | {"device_name": "another"}))
    assert main(["compare", "three", "--baseline", "main"]) == 2


@pytest.mark.slow
def test_a_new_torch_on_the_same_machine_is_held_against_the_old(runs, capsys):
    for name, torch in (("one", "2.12.0"), ("two", "2.13.0")):
        env = RunFolder(runs(name)).launch(0).env(0)
        env.write_text(json.dumps(json.loads(env.read_text()) | {"torch": torch}))
    main(["compare", "one", "--baseline", "main", "--keep"])
    capsys.readouterr()
    assert main(["compare", "two", "--baseline", "main", "--json"]) == 0
    differing = {s["key"]: (s["base"], s["other"]) for s in document(capsys)["settings"]}
    assert differing["torch"] == ("2.12.0", "2.13.0")


def test_a_regression_is_exit_1_and_is_not_kept(runs):
    runs("one")
    runs("same", seed=1)
    runs("slow", seed=2, beta_ns=4.0)
    main(["compare", "one", "--baseline", "main", "--keep"])
    gate = ["--baseline", "main", "--fail-below", "0.9", "--keep"]
    assert main(["compare", "same", *gate]) == 0
    assert main(["compare", "slow", *gate]) == 1
    assert kept() == {"one", "same"}


def test_the_first_run_is_kept_and_there_is_nothing_to_compare_with(runs, capsys):
    runs("one")
    assert main(["compare", "one", "--baseline", "main", "--keep", "--json", "--fail-below", "0.9"]) == 0
    assert document(capsys) == {"comparisons": []}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["one", "--keep"], "2 or more"),
        (["one", "one", "--keep"], "--baseline NAME"),
        (["one", "--baseline", "../x"], "letters, digits"),
        (["one", "one", "cost.usd_per_gpu_hour=0"], "above 0"),
        (["one", "one", "cost.usd_per_gpu_hour=[1,2,3]"], "one price or 2"),
        (["one", "one", "cost.eur=1"], "cost.usd_per_gpu_hour=2.5"),
        (["one", "one", "--undecided", "ok"], "--fail-below"),
        (["one", "one", "--fail-below", "0.9", "--undecided", "no"], "ok is expected"),
        (["one", "one", "--into", "one/plan.json"], "name a folder that can"),
        (["one", "one", "--into", "/proc/comparison"], "name a folder that can"),
    ],
)
def test_bad_input_is_one_line(runs, capsys, arguments, said):
    runs("one")
    refused(capsys, ["compare", *arguments], said)
    assert not Path("runs").exists()


@pytest.mark.slow
def test_a_comparison_goes_into_a_folder_that_is_made_for_it(runs, capsys):
    runs("one")
    assert main(["compare", "one", "one", "--into", "some/where"]) == 0
    folder = RunFolder(Path("some/where"))
    assert f"comparison: {folder.comparison_html}" in capsys.readouterr().out
    assert json.loads(folder.comparison.read_text())["comparable"]
    assert folder.comparison_md.is_file()


def test_a_name_is_looked_up_in_its_own_folder_only(runs):
    runs("one")
    folder = RunFolder(Path("one"))
    plan = rebuild(folder).plan
    baselines.keep("main", folder, plan)
    assert baselines.find("main", folder, plan) is not None
    assert baselines.find("other", folder, plan) is None
    strong = replace(plan, spec=replace(plan.spec, mode="strong"))
    assert baselines.find("main", folder, strong) is None


def test_prices_and_the_split_are_in_the_document(runs, capsys):
    runs("slow", beta_ns=8.0)
    runs("fast", seed=1)
    assert main(["compare", "slow", "fast", "cost.usd_per_gpu_hour=[2,3]", "--json"]) == 0
    two = next(p for p in document(capsys)["points"] if p["world_size"] == 2)
    split, ratio = two["split"], two["ratio"]["value"]
    assert split["fabric"]["value"] == pytest.approx(ratio, rel=0.05)
    assert split["compute"]["value"] == pytest.approx(1.0, rel=0.03)
    assert two["cost"]["per_usd"]["value"] == pytest.approx(ratio * 2 / 3)
    assert two["cost"]["base"]["power_w"] is None
    assert main(["compare", "slow", "fast"]) == 0
    assert "the samples a dollar" not in capsys.readouterr().out


CONTENDED = "contended: 9 of 16 compute blocks waited for a core"


def contend(name):
    """Let the analysis of a run say that other programs ran."""
    folder = RunFolder(Path(name))
    analysis = read_analysis(folder)
    quality = replace(analysis.quality, warnings=(CONTENDED,))
    write_json(folder.analysis, replace(analysis, quality=quality))


def widen(name):
    """Make the throughputs of a run so uncertain that no gate near 1 is decided."""
    folder = RunFolder(Path(name))
    analysis = read_analysis(folder)
    points = [replace(p, samples_per_s=p.samples_per_s.stretched(100)) for p in analysis.points]
    write_json(folder.analysis, replace(analysis, points=tuple(points)))


def kept():
    return {path.name for path in Path("runs/baselines/main").glob("[!.]*")}


def test_an_undecided_gate_is_exit_4_and_keeps_nothing_unless_that_is_ok(runs, capsys):
    runs("one")
    widen(runs("wide", seed=1))
    gate = ["compare", "one", "wide", "--fail-below", "0.9"]
    assert main(gate) == 4
    assert "undecided" in capsys.readouterr().out
    assert main([*gate, "--undecided", "ok"]) == 0
    main(["compare", "one", "--baseline", "main", "--keep"])
    gate = ["compare", "wide", "--baseline", "main", "--fail-below", "0.9", "--keep"]
    assert main(gate) == 4
    assert "stays as it is, since the gate is undecided" in capsys.readouterr().err
    assert kept() == {"one"}
    assert main([*gate, "--undecided", "ok"]) == 0
    assert kept() == {"one", "wide"}


def test_a_contended_run_is_kept_as_baseline_only_if_asked_for(runs, capsys):
    contend(runs("one"))
    refused(capsys, ["compare", "one", "--baseline", "main", "--keep"], "--anyway")
    assert not Path("runs").exists()
    assert main(["compare", "one", "--baseline", "main", "--keep", "--anyway"]) == 0
    assert kept() == {"one"}


def test_a_comparison_of_a_contended_run_says_so_everywhere(runs, capsys):
    runs("one")
    contend(runs("two", seed=1))
    assert main(["compare", "one", "two", "--json"]) == 0
    assert document(capsys)["contended"] == ["other: 9 of 16 compute blocks waited for a core"]
    assert main(["compare", "one", "two", "--into", "both"]) == 0
    said = capsys.readouterr().out.replace("\n  ", " ")
    for text in (said, Path("both/comparison.html").read_text(), Path("both/comparison.md").read_text()):
        assert "A run was contended, so this is a hint and not a finding." in text
        assert "9 of 16 compute blocks waited for a core" in text
    assert main(["compare", "one", "one"]) == 0
    assert "contended" not in capsys.readouterr().out


def test_runs_of_a_multirun_are_one_table_and_only_equal_work_is_compared(runs, capsys):
    Path("many").mkdir()
    for name, truth in {"0": {"batch": 4}, "1": {"batch": 16}, "2": {"batch": 4, "seed": 1}}.items():
        runs(f"many/{name}", beta_ns=40.0, **truth)
    assert main(["compare", "many/0", "many/1", "many/2", "--into", "many"]) == 0
    out = capsys.readouterr().out
    assert "NOT COMPARABLE" not in out
    assert len(out.splitlines()) < 40
    assert "2 ranks are slower than 1 in every row" in out.replace("\n  ", " ")
    document = json.loads(Path("many/comparison.json").read_text())
    assert [(one["base"]["id"], one["other"]["id"]) for one in document["comparisons"]] == [
        ("many-0", "many-2")
    ]
    assert len(document["sweep"]["rows"]) == 6
    assert "All runs" in Path("many/comparison.html").read_text()
