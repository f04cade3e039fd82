"""Runs kept by name, found again by machine and model, and the gate on them, from the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.commands import refused

from scaling.cli.main import main
from scaling.cli.pipeline import read_analysis, rebuild
from scaling.records import baselines
from scaling.records.files import write_json
from scaling.records.paths import RunFolder


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
