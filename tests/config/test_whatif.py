"""What `scaling predict` is asked, through Hydra, against a run that was measured."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from support.commands import refused

from scaling.cli.main import main
from scaling.config.compose import changed, requests
from scaling.records.paths import RunFolder
from scaling.resources import folder

MACHINES = sorted(
    path.stem
    for path in (folder("conf") / "topology").glob("*.yaml")
    if "device: cuda" in path.read_text() and path.stem != "local_shared_gpu"  # it is this machine's own GPU
)

QUICK = ("hgx_h100", "nvlink_node")


@pytest.fixture(scope="module")
def run(simulate, cluster, tmp_path_factory) -> Path:
    """A simulated run with a config.yaml of its own, as `scaling run` leaves it."""
    path = tmp_path_factory.mktemp("predict") / "run"
    simulate(cluster.Truth(world_sizes=(1, 2, 4)), path)
    write_config(
        path, "world_sizes=[1,2,4]", "topology.hosts=4", "topology.link.rate=4gbit", "batch_per_rank=32"
    )
    return path


def write_config(path, *overrides):
    (asked,) = requests("run", ["topology=emulated_pcie", *overrides]).items
    RunFolder(path).config.write_text(asked.yaml, encoding="utf-8")


def test_settings_that_are_gone_are_left_out_of_an_earlier_config(run):
    text = RunFolder(run).config.read_text(encoding="utf-8")
    earlier = text.replace("tracking:\n", "tracking:\n  alerts: true\n  objective: efficiency\n")
    assert earlier != text
    assert changed(earlier, []) == changed(text, [])


def predicted(capsys, run, *overrides):
    assert main(["predict", str(run), *overrides, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def not_predicted(capsys, run, *overrides):
    """The line that refuses the prediction."""
    return refused(capsys, ["predict", str(run), *overrides])


def test_a_sweep_of_world_sizes(capsys, run):
    found = predicted(capsys, run, "world_sizes=[2,4,8,16]")
    assert [p["world_size"] for p in found["points"]] == [2, 4, 8, 16]
    for point in found["points"]:
        step = point["step_ms"]
        assert step["low"] < step["value"] < step["high"]
        losses = [number["value"] for number in point["loss"].values() if number]
        assert sum(losses) == pytest.approx(1 - point["efficiency"]["value"])


def test_the_measured_world_sizes_are_as_measured(capsys, run):
    found = predicted(capsys, run)
    assert main(["analyze", str(run), "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)["points"]
    for ours, theirs in zip(found["points"][1:], measured[1:], strict=True):
        assert ours["step_ms"]["value"] == pytest.approx(theirs["step_ms"]["value"], rel=1e-9)
        assert ours["efficiency"]["value"] == pytest.approx(theirs["efficiency"]["value"], rel=0.02)


def test_the_back_test_leaves_each_world_size_out(capsys, run):
    tests = predicted(capsys, run, "topology.link.rate=1gbit")["backtest"]
    assert [(t["world_size"], t["from_world_size"]) for t in tests] == [(2, 4), (4, 2)]
    for test in tests:
        assert test["error"] == pytest.approx(
            test["predicted_ms"]["value"] / test["measured_ms"]["value"] - 1
        )
        assert abs(test["error"]) < 0.05


@pytest.mark.slow
def test_a_faster_link_is_never_slower(capsys, run):
    rates = ("1gbit", "2gbit", "8gbit")
    steps = [
        predicted(capsys, run, f"topology.link.rate={r}")["points"][-1]["step_ms"]["value"] for r in rates
    ]
    assert steps == sorted(steps, reverse=True)


@pytest.mark.parametrize(
    "machine", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MACHINES]
)
def test_every_machine_that_is_shipped(capsys, run, machine):
    """Within a host, between hosts, and on the 100 to 400 Gbit that join them."""
    for rate in ("100gbit", "400gbit"):
        found = predicted(
            capsys, run, f"topology={machine}", f"topology.link.rate={rate}", "world_sizes=[4,64]"
        )
        inside, across = found["points"]
        if machine.endswith("_node"):  # a site's own: what joins its devices is for the run to measure
            assert "the link between them is not known" in inside["cannot"]
            assert across["efficiency"] is not None
        else:
            assert inside["efficiency"]["value"] >= across["efficiency"]["value"]
        assert across["hosts"] in (8, 16)


def test_one_world_size_that_cannot_be_said_hides_no_other(capsys, run):
    asked = ("topology=nvlink_node", "topology.link.rate=100gbit", "world_sizes=[4,64]")
    assert main(["predict", str(run), *asked]) == 0
    said = " ".join(capsys.readouterr().out.replace("\N{NO-BREAK SPACE}", " ").split())
    answer = said.partition("# answer")[2]
    assert "64 ranks: a step of" in answer
    assert "4 ranks: cannot say, these ranks share one host" in answer


def test_a_machine_of_ones_own(capsys, run, tmp_path):
    (tmp_path / "topology").mkdir()
    (tmp_path / "topology" / "mine.yaml").write_text(
        "{name: mine, kind: local, ranks_per_host: 4, levels: [{name: nvlink, ranks: 2, rate: 100gbit}, "
        "{name: pcie, ranks: 4, rate: 10gbit}]}"
    )
    options = ("--config-dir", str(tmp_path))
    two, four = predicted(capsys, run, "topology=mine", "world_sizes=[2,4]", *options)["points"]
    assert two["loss"]["link_bandwidth"]["value"] < four["loss"]["link_bandwidth"]["value"]
    assert "8 ranks need 2 hosts of 4" in not_predicted(
        capsys, run, "topology=mine", "world_sizes=[8]", *options
    )
    assert "no such folder" in not_predicted(capsys, run, "--config-dir=nowhere")


@pytest.mark.parametrize("text", ["{levels: []}", "{name: mine, levels: []}"])
def test_a_machine_that_lacks_a_key_is_told_which(capsys, run, tmp_path, text):
    (tmp_path / "topology").mkdir()
    (tmp_path / "topology" / "mine.yaml").write_text(text)
    said = not_predicted(capsys, run, "topology=mine", "--config-dir", str(tmp_path))
    assert "a value is expected, such as topology." in said


def test_a_machine_with_a_name_that_is_taken_is_not_predicted(capsys, run, tmp_path):
    (tmp_path / "topology").mkdir()
    (tmp_path / "topology" / "hgx_h100.yaml").write_text("{name: hgx_h100, kind: local}")
    said = not_predicted(capsys, run, "topology=hgx_h100", "--config-dir", str(tmp_path))
    assert "topology=hgx_h100 is one of those that come with the program" in said


@pytest.mark.parametrize(
    "machine", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MACHINES]
)
def test_every_number_of_a_machine_has_its_source_beside_it(machine):
    for line in (folder("conf") / "topology" / f"{machine}.yaml").read_text().splitlines():
        if line.strip().startswith(("rate:", "share:", "latency_us:")):
            assert "#" in line, line


def test_a_machine_that_is_not_here_can_be_planned_in_one_line(capsys):
    if main(["plan", "topology=hgx_h100"]) == 2:
        out, err = capsys.readouterr()
        assert out == ""
        assert "scaling predict RUN topology=hgx_h100" in err


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("batch_per_rank=-4", "at least 1"),
        ("batch_per_rank=0", "at least 1"),
        ("accumulation_steps=0", "at least 1"),
        ("accumulation_steps=3", "does not divide"),
        ("ddp.bucket_cap_mb=0", "above 0"),
        ("ddp.bucket_cap_mb=nan", "above 0"),
        ("compute_scale=-1", "above 0"),
        ("gradient_compression=0", "above 0"),
        ("world_sizes=[0,2]", "not between 1"),
        ("world_sizes=[]", "at least one"),
        ("world_sizes=4", "a list is expected"),
        ("world_sizes=[two]", "world_sizes"),
        ("topology=hgx_h1000", "available: "),
        ("topology=local", "topology.ranks_per_host"),
        ("topology.link.rate=fast", "not a link rate"),
        ("topology.link.share=7", "a fraction"),
        ("precision=bf16", "cannot be"),
        ("precision.name=bf16", "cannot be predicted"),
        ("model.width=7", "model.width"),
        ("batchsize=3", "no such key"),
        ("world_sizes", "key=value"),
    ],
)
def test_nonsense_is_refused_in_one_line(capsys, run, override, said):
    assert said in not_predicted(capsys, run, override)


def test_a_value_of_the_run_itself_that_cannot_be_is_refused(capsys, run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run" / "config.yaml"
    text = path.read_text()
    assert "\naccumulation_steps: 1\n" in text
    path.write_text(text.replace("\naccumulation_steps: 1\n", "\naccumulation_steps: 0\n"))
    assert "accumulation_steps=0: at least 1" in not_predicted(capsys, tmp_path / "run", "world_sizes=[4]")


def test_ranks_that_nothing_joins_are_not_predicted(capsys, run):
    line = not_predicted(capsys, run, "topology=hgx_h100", "topology.link.rate=null", "world_sizes=[8,16]")
    assert "16 ranks need 2 hosts of 8" in line


def test_a_run_that_is_none_is_not_predicted(capsys, tmp_path):
    assert "no such folder" in not_predicted(capsys, tmp_path / "nothing")
    refused(capsys, ["predict"], "run folder")


def test_without_its_config_a_run_cannot_be_changed(capsys, simulate, cluster, tmp_path):
    simulate(cluster.Truth(world_sizes=(2,), rounds=3), tmp_path / "run")
    assert "config.yaml" in not_predicted(capsys, tmp_path / "run")


@pytest.mark.slow
def test_one_world_size_has_no_back_test_and_says_so(capsys, simulate, cluster, tmp_path):
    simulate(cluster.Truth(world_sizes=(1, 2), rounds=4), tmp_path / "run")
    write_config(tmp_path / "run", "world_sizes=[1,2]", "batch_per_rank=32")
    found = predicted(capsys, tmp_path / "run", "world_sizes=[4]")
    assert found["backtest"] == []
    assert "only world size" in found["backtest_missing"]
    assert found["points"][0]["step_ms"]["value"] > 0


def test_a_rank_alone_says_nothing_of_more(capsys, simulate, cluster, tmp_path):
    simulate(cluster.Truth(world_sizes=(1,), rounds=4), tmp_path / "run")
    write_config(tmp_path / "run", "world_sizes=[1]", "batch_per_rank=32")
    found = predicted(capsys, tmp_path / "run", "world_sizes=[4]")
    assert found["points"][0]["step_ms"] is None
    assert "no world size above 1" in found["points"][0]["cannot"]
    assert main(["predict", str(tmp_path / "run"), "world_sizes=[4]"]) == 0
    assert "Cannot say" in capsys.readouterr().out


@pytest.mark.slow
def test_a_link_that_the_cpu_held_back_is_not_carried_over(capsys, simulate, cluster, tmp_path):
    """The link's file promises four times what its own sweep reached."""

    from scaling.records.files import write_json
    from scaling.records.run import read_plan
    from scaling.settings.topology import Link

    truth = cluster.Truth(world_sizes=(1, 2), rounds=4)
    simulate(truth, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    plan = read_plan(run)
    topology = dataclasses.replace(plan.spec.topology, link=Link(rate_bit_s=int(4 * 8e9 / truth.beta_ns)))
    write_json(run.plan, dataclasses.replace(plan, spec=dataclasses.replace(plan.spec, topology=topology)))
    write_config(run.path, "world_sizes=[1,2]", "topology.link.rate=16gbit", "batch_per_rank=32")
    found = predicted(capsys, run.path, "topology.link.rate=8gbit")
    assert "something else limits it" in found["points"][-1]["cannot"]


def test_in_the_terminal(capsys, run):
    assert main(["predict", str(run), "world_sizes=[2,8]", "topology=dgx_a100"]) == 0
    out = capsys.readouterr().out
    for words in (
        "predicted",
        "back-test",
        "what this leans on",
        "compute_scale=2",
        "dgx_a100",
    ):
        assert words in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80


def test_a_predicted_row_says_that_it_is_and_stands_under_its_own_columns(capsys, run):
    assert main(["predict", str(run), "world_sizes=[8]", "topology=dgx_a100"]) == 0
    out = capsys.readouterr().out
    assert "\n#ranks  hosts" in out
    (head,) = (line for line in out.splitlines() if line.startswith("#ranks  hosts"))
    assert head.split() == ["#ranks", "hosts", "step", "samples", "speedup", "efficiency"]
    assert "8 ranks, predicted: a step of" in out
    assert "\n  predicted  " in out
    assert "\n  measured  " not in out
    assert "x3: step +" in " ".join(out.split())


def test_a_contended_run_is_not_predicted_from_unless_asked_to(capsys, simulate, cluster, tmp_path):
    from dataclasses import replace

    from scaling.cli.pipeline import rebuild
    from scaling.records.files import write_json

    path = tmp_path / "run"
    simulate(cluster.Truth(world_sizes=(1, 2), rounds=4), path)
    write_config(path, "world_sizes=[1,2]", "batch_per_rank=32")
    analysis = rebuild(RunFolder(path)).analysis
    quality = replace(analysis.quality, warnings=("contended: 9 of 16 compute blocks waited",))
    write_json(RunFolder(path).analysis, replace(analysis, quality=quality))
    said = not_predicted(capsys, path, "world_sizes=[4]")
    assert "9 of 16 compute blocks waited" in said
    assert "--anyway" in said
    assert predicted(capsys, path, "world_sizes=[4]", "--anyway")["points"][0]["step_ms"]
    assert "world_size: no such key; did you mean world_sizes" in not_predicted(
        capsys, path, "world_size=[4]"
    )
