"""What others kept, from the tables that come with the program: against the tables' own published figures."""

import csv
import json
from dataclasses import replace

import pytest
from support import mllogs

from scaling.cli.main import main
from scaling.report.documents import run as report
from scaling.report.findings import reference_lines
from scaling.report.markdown import draw
from scaling.traces.published.mlperf import import_mlperf
from scaling.traces.published.reference import TABLE, others, table


def measured(tmp_path, device, sizes=((8, 100.0), (32, 30.0)), *, weak=False):
    """The analysis of a training on a device, made of logs."""
    for n, seconds in sizes:
        batch = 32 * n if weak else 320
        text = mllogs.log((seconds,) * 3, devices=n, batch=batch, epoch=1_170_301, stated=None)
        system = {"number_of_nodes": 1, "accelerators_per_node": n, "accelerator_model_name": device}
        mllogs.write(tmp_path / f"{n}", text, **system)
    (one,) = import_mlperf([str(tmp_path)])
    return one.analysis


def test_the_tables_are_what_was_published(shared):
    """Each ratio against the speedup or efficiency that the source itself prints."""
    checked = 0
    by_name = {one.name: one for one in table()}
    with shared("scaling/published_dlperf_v100.csv").open() as file:
        for row in csv.DictReader(file):
            name = "DLPerf-" + row["source"].split("table")[1].split(" ")[0]
            kept = by_name[name].kept(1, int(row["gpus"]))
            assert kept * int(row["gpus"]) == pytest.approx(float(row["published_scaling"]), abs=0.02)
            checked += 1
    with shared("scaling/published_sharded.csv").open() as file:
        for row in csv.DictReader(file):
            if row["series"]:
                kept = by_name[f"sharded-{row['series']}"].kept(
                    int(row["series_base_gpus"]), int(row["gpus"])
                )
                assert kept == pytest.approx(float(row["efficiency_vs_base"]), abs=0.002)
                checked += 1
    assert checked > 140


def test_every_row_has_a_source_and_a_licence():
    with TABLE.open() as file:
        rows = list(csv.DictReader(file))
    assert all(
        row["source"] and row["licence"] and row["device"] and row["mode"] in ("weak", "strong")
        for row in rows
    )
    assert len(table()) == len({row["series"] for row in rows})
    assert TABLE.stat().st_size < 64 << 10


def test_the_same_kind_of_device_comes_first(tmp_path):
    analysis = measured(tmp_path, "Tesla V100-SXM2-32GB", ((1, 800.0), (8, 110.0)), weak=True)
    (found,) = others(analysis)
    assert (found.world_size, found.base_world_size, found.mode) == (8, 1, "weak")
    assert set(found.alike) == {"device", "strategy"}
    assert {o.device for o in found.others} == {"V100"}
    assert [o.efficiency for o in found.others] == sorted(o.efficiency for o in found.others)
    (line,) = reference_lines([found])
    assert line.startswith(f"others at 8 GPUs kept {100 * found.low:.0f}-{100 * found.high:.0f} % over one (")
    assert "their machines and models differ" in line


def test_figures_of_mlperf_bring_their_terms(tmp_path):
    (found,) = others(measured(tmp_path, "NVIDIA H200"))
    assert found.terms == "figures from MLPerf logs are derived and not verified by MLCommons"
    assert found.others[0].efficiency == pytest.approx(0.897, abs=0.001)
    assert found.terms in reference_lines([found])[0]


def test_what_nobody_published_is_not_made_up(tmp_path):
    assert others(measured(tmp_path, "NVIDIA H200", ((8, 100.0), (24, 40.0)))) == ()
    weak_only = measured(tmp_path / "b", "Tesla V100", ((1, 800.0), (8, 110.0)))
    assert all(one.mode == "strong" for one in others(weak_only))


def test_sharded_trainings_are_another_kind(tmp_path):
    analysis = measured(tmp_path, "NVIDIA H100", ((8, 800.0), (64, 110.0)), weak=True)
    (found,) = others(analysis, sharded=True)
    assert {o.strategy.split()[0] for o in found.others} == {"FSDP"}


def test_the_command_and_its_document(shared, tmp_path, capsys):
    assert main(["import", "mlperf", str(shared("mlperf")), "--into", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("retinanet-HPE-*")
    capsys.readouterr()
    assert main(["compare", str(path), "--reference"]) == 0
    said = capsys.readouterr().out
    assert "32 ranks, strong scaling over 8: this run keeps 89.71 %" in said
    assert "not verified by MLCommons" in said
    assert main(["compare", str(path), "--reference", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["world_size"] for one in document["reference"]] == [16, 32]
    assert main(["compare", str(path), str(path), "--reference"]) == 2


def test_the_line_is_in_a_report(tmp_path):
    (one,) = import_mlperf([str(_logs(tmp_path))])
    with_others = replace(one.analysis, reference=others(one.analysis))
    assert "thers at 32 GPUs kept 90 % over 8" in draw(report.document(with_others, one.plan))


def _logs(tmp_path):
    measured(tmp_path, "NVIDIA H200")
    return tmp_path
