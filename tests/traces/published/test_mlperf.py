"""MLPerf Training logs: the real ones against a computation of their own, and made ones in which the truth is known."""

import json
import re
from statistics import mean

import pytest
from support import mllogs
from support.commands import refused

from scaling.cli.main import main
from scaling.records.paths import RunFolder
from scaling.records.run import read_plan
from scaling.traces.published.mlperf import import_mlperf

IMAGES = 1_170_301


@pytest.fixture
def imported(capsys):
    """imported(*paths) -> the series of the document."""

    def run(*paths):
        assert main(["import", "mlperf", *map(str, paths), "--json"]) == 0
        return json.loads(capsys.readouterr().out)["series"]

    return run


def epochs_of(path):
    """Seconds of each epoch but the last, by nothing but the log's own lines."""
    found = {}
    for text in path.read_text().splitlines():
        hit = re.search(r'"time_ms": (\d+).*"key": "epoch_(start|stop)".*"epoch_num": (\d+)', text)
        if hit:
            found[int(hit[3]), hit[2]] = int(hit[1])
    last = max(k for k, _ in found)
    return [(found[k, "stop"] - found[k, "start"]) / 1e3 for k in range(last)]


def test_every_shared_log_gives_what_its_epochs_give(shared):
    folder = shared("mlperf")
    runs = [r for one in import_mlperf([str(folder)]) for size in one.series.sizes for r in size.runs]
    assert len(runs) == len(list(folder.rglob("result_*.txt"))) == 10
    for run in runs:
        assert run.samples_per_s == pytest.approx(IMAGES / mean(epochs_of(run.path)), rel=0.005)
        assert run.unit == "device"


def test_the_efficiencies_of_a_series_on_one_two_and_four_nodes(shared, imported):
    folder = shared("mlperf")
    seconds = {
        n: mean(
            mean(epochs_of(p))
            for p in (folder / f"v5.0_HPE_HPE-Cray-XD670-H200-SXM5-141GB_n{n}_24.09").glob("r*")
        )
        for n in (1, 2, 4)
    }
    (series,) = [s for s in imported(folder) if len(s["points"]) > 1]
    assert (series["run"]["mode"], [p["world_size"] for p in series["points"]]) == ("strong", [8, 16, 32])
    for point, n in zip(series["points"], (1, 2, 4), strict=True):
        assert point["efficiency"]["value"] == pytest.approx(seconds[1] / (n * seconds[n]), rel=5e-4)
        assert point["base_world_size"] == 8
    assert [round(p["efficiency"]["value"], 3) for p in series["points"]] == [1.0, 0.959, 0.897]
    assert any("6 of 6 logs state the throughput of one device" in w for w in series["quality"]["warnings"])
    assert any("not verified by MLCommons" in w for w in series["quality"]["warnings"])


def test_two_machines_of_one_submitter_are_two_series(shared, imported):
    names = {s["run"]["topology"] for s in imported(shared("mlperf")) if "Dell" in s["run"]["topology"]}
    assert names == {"Dell XE7740x8H200-NVL-141GB", "Dell XE9680x8H200-SXM-141GB"}


@pytest.mark.parametrize("stated", ["device", "job", None])
@pytest.mark.parametrize("epoch", [4572, 1_170_432])
def test_the_unit_of_a_throughput_and_of_an_epoch(tmp_path, stated, epoch):
    """An epoch's size may be steps or samples; what the log states may be one device's."""
    text = mllogs.log(epoch=4572, stated=stated).replace('"value": 4572', f'"value": {epoch}')
    (one,) = import_mlperf([str(mllogs.write(tmp_path, text))])
    (run,) = one.series.sizes[0].runs
    assert run.samples_per_s == pytest.approx(4572 * 256 / 100)
    assert run.unit == (stated or "")


def test_a_throughput_that_is_neither_is_said_and_the_epochs_count(tmp_path):
    (one,) = import_mlperf([str(mllogs.write(tmp_path, mllogs.log(stated=5.0)))])
    assert one.analysis.points[0].samples_per_s.value == pytest.approx(4572 * 256 / 100)
    assert any("it states 5 samples/s, its epochs give" in w for w in one.analysis.quality.warnings)


@pytest.mark.parametrize(("epoch", "rate"), [(1000, 1000 * 64 / 50), (64_000, 64_000 / 50)])
def test_a_benchmark_whose_dataset_is_not_known(tmp_path, epoch, rate):
    """The stated throughput shows whether its train_samples are steps or samples."""
    text = mllogs.log((50, 50, 9), benchmark="new", batch=64, epoch=1000, stated="job")
    text = text.replace('"value": 1000,', f'"value": {epoch},')
    (one,) = import_mlperf([str(mllogs.write(tmp_path, text))])
    assert one.analysis.points[0].samples_per_s.value == pytest.approx(rate)


def test_blocks_that_count_their_samples(tmp_path):
    """As the language models log: training between two evaluations."""
    lines = [
        mllogs.line(k, 0, v)
        for k, v in (("submission_benchmark", "llama2_70b_lora"), ("global_batch_size", 8))
    ]
    for k in range(4):
        lines.append(mllogs.line("block_start", 60_000 * k, None, "INTERVAL_START", samples_count=192 * k))
        lines.append(
            mllogs.line(
                "tracked_stats", 60_000 * k + 48_000, {"throughput": 4.0}, samples_count=192 * (k + 1)
            )
        )
        lines.append(
            mllogs.line("block_stop", 60_000 * k + 48_000, None, "INTERVAL_END", samples_count=192 * (k + 1))
        )
    path = mllogs.write(tmp_path, "\n".join(lines), number_of_nodes="1", accelerators_per_node=8)
    (one,) = import_mlperf([str(path)])
    assert one.analysis.points[0].samples_per_s.value == pytest.approx(4.0)
    assert one.series.sizes[0].runs[0].unit == "job"


def test_weak_scaling_is_found_by_the_batch_of_a_device(tmp_path, imported):
    for nodes, seconds in ((1, 100.0), (2, 52.0)):
        text = mllogs.log((seconds,) * 3, devices=8 * nodes, batch=256 * nodes, epoch=4572 // nodes)
        mllogs.write(
            tmp_path / f"{nodes}",
            text,
            system_name=f"{nodes}xMachine",
            number_of_nodes=nodes,
            accelerators_per_node=8,
        )
    (series,) = imported(tmp_path)
    assert (series["run"]["mode"], [p["world_size"] for p in series["points"]]) == ("weak", [8, 16])
    assert series["points"][1]["efficiency"]["value"] == pytest.approx(100 / 104)
    assert series["points"][1]["step_ms"]["value"] == pytest.approx(52e3 / 2286)


def test_an_interval_is_over_runs(tmp_path):
    for number, seconds in enumerate((100, 102, 98)):
        mllogs.write(tmp_path, mllogs.log((seconds,) * 3), number)
    (one,) = import_mlperf([str(tmp_path)])
    rate = one.analysis.points[0].samples_per_s
    assert rate.n == 3
    assert rate.holds(4572 * 256 / 100)
    assert 0.02 < rate.half_width / rate.value < 0.06  # t(2) x 2 % / sqrt(3)


def test_a_folder_of_each_series_is_a_runs(tmp_path, capsys, shared):
    assert main(["import", "mlperf", str(shared("mlperf")), "--into", str(tmp_path)]) == 0
    assert "89.71" in capsys.readouterr().out
    (path,) = tmp_path.glob("retinanet-HPE-*")
    folder = RunFolder(path)
    assert read_plan(folder).source == "published"
    assert main(["report", str(path)]) == 0
    assert "keeps 89.71 %" in capsys.readouterr().out
    page = folder.report_html.read_text()
    assert "not verified by MLCommons" in page
    assert main(["compare", *map(str, sorted(tmp_path.glob("retinanet-Dell-*"))), "--json"]) == 0
    capsys.readouterr()
    refused(capsys, ["analyze", str(path)], "run `scaling import mlperf` on them again")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hello", "no line with :::MLLOG in it"),
        (mllogs.line("run_start", 0), "it does not give its global_batch_size"),
        (mllogs.log(()), "it holds no whole epoch"),
        (mllogs.log(local_batch_size=None), "tells how many devices"),
        (mllogs.log(epoch=999), "its train_samples, 999, are neither the dataset's samples nor its steps"),
        (mllogs.log(benchmark="new", stated=None), "its train_samples may be samples or steps"),
    ],
)
def test_a_log_without_a_figure_is_refused_in_one_line(tmp_path, monkeypatch, capsys, text, why):
    monkeypatch.chdir(tmp_path)
    mllogs.write(tmp_path, text)
    code = main(["import", "mlperf", "result_0.txt"])
    said = capsys.readouterr()
    assert code in (1, 2)
    assert said.out == ""
    assert why in said.err
    assert [p.name for p in tmp_path.iterdir()] == ["result_0.txt"]


def test_damaged_lines_are_counted_and_the_rest_is_used(tmp_path):
    text = mllogs.log().replace(
        mllogs.line("submission_org", 1_700_000_000_000, "Somebody"), ":::MLLOG {broken"
    )
    (one,) = import_mlperf([str(mllogs.write(tmp_path, text))])
    assert any("1 lines of MLPerf's log cannot be read" in w for w in one.analysis.quality.warnings)


def test_a_submission_as_it_lies_in_its_repository(tmp_path):
    """SUBMITTER/results/SYSTEM/BENCHMARK/result_N.txt, and SUBMITTER/systems/SYSTEM.json."""
    system = {
        "submitter": "Somebody",
        "system_name": "2xMachine",
        "number_of_nodes": "2",
        "accelerators_per_node": "4",
    }
    (tmp_path / "systems").mkdir()
    (tmp_path / "systems" / "2xMachine.json").write_text(json.dumps(system))
    mllogs.write(tmp_path / "results" / "2xMachine" / "retinanet", mllogs.log())
    (one,) = import_mlperf([str(tmp_path)])
    (point,) = one.analysis.points
    assert (one.analysis.run.topology, point.world_size, point.hosts) == ("Somebody Machine", 8, 2)


def test_the_throughput_of_one_device_is_the_jobs(tmp_path):
    """It is both; a series whose logs all state the job's must not be said to hold one device's."""
    paths = [
        mllogs.write(
            tmp_path / str(n),
            mllogs.log(devices=n, stated="job"),
            number_of_nodes="1",
            accelerators_per_node=str(n),
        )
        for n in (1, 8)
    ]
    (one,) = import_mlperf(list(map(str, paths)))
    assert [run.unit for size in one.series.sizes for run in size.runs] == ["job", "job"]
    assert not any("of one device, not of the job" in said for said in one.analysis.quality.warnings)
