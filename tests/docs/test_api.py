"""The public API: its names are frozen, its examples run, and it answers as the verbs do."""

import doctest
import inspect
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import scaling
from scaling import InputError, Run, compare, load, predict
from scaling.cli.main import main
from scaling.records import files
from scaling.report import text

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
NAMES = (
    "Analysis Comparison InputError Measured Probe Run ScalingError Workload __version__ compare load predict"
)
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


@pytest.fixture
def here(runs, monkeypatch):
    """The folder of the runs is the working directory."""
    monkeypatch.chdir(runs)
    return runs


@pytest.fixture
def first(here):
    return load("runs/2026-03-02/101500-a1b2c3")


@pytest.fixture
def second(here):
    return load("runs/2026-03-02/111500-d4e5f6")


def test_the_public_names_are_frozen():
    assert sorted(scaling.__all__) == NAMES.split()
    assert all(getattr(scaling, name) is not None for name in scaling.__all__)
    assert set(scaling.__all__) <= set(dir(scaling))


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (load, ["path='latest'"]),
        (compare, ["base", "other", "usd_per_gpu_hour=(None, None)"]),
        (predict, ["run", "overrides", "config_dir=None", "from_world_size=None", "anyway=False"]),
        (Run.point, ["self", "world_size"]),
    ],
)
def test_the_public_parameters_are_frozen(function, parameters):
    found = inspect.signature(function).parameters.values()
    assert [
        p.name if p.default is inspect.Parameter.empty else f"{p.name}={p.default!r}" for p in found
    ] == parameters


def test_the_public_parts_of_a_run_are_frozen():
    named = {name for name in vars(Run) if not name.startswith("_")}
    tables = {"steps", "buckets", "fabric", "blocks"}
    assert named == tables | {"analysis", "path", "plan", "point"}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = scaling.nothing


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, scaling; print({'torch', 'polars', 'hydra', 'numpy', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_loading_a_run_needs_no_torch(here):
    code = "import sys, scaling; scaling.load(); print({'torch', 'wandb'} & set(sys.modules))"
    load()  # what is derived is there
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=here)
    assert done.stdout.strip() == "set()"


def test_the_examples_of_the_page_run_as_shown(here):
    page = PAGE.read_text(encoding="utf-8").replace("```\n", "\n")  # a fence ends what an example prints
    names = {"load": load, "compare": compare, "predict": predict}
    examples = doctest.DocTestParser().get_doctest(page, names, "docs/api.md", str(PAGE), 0)
    assert len(examples.examples) > 15
    said = []
    doctest.DocTestRunner(optionflags=FLAGS).run(examples, out=said.append)
    assert not said, "".join(said)


def test_latest_is_the_run_that_began_last(first, second):
    assert load().path.resolve() == second.path.resolve()


def test_the_verbs_know_latest_too(second, capsys):
    assert main(["report", "latest"]) == 0
    assert capsys.readouterr().out.rstrip().endswith(str(second.folder.report_html))


def test_a_folder_of_that_name_comes_first(first, tmp_path, monkeypatch):
    there = first.path.absolute()
    monkeypatch.chdir(tmp_path)
    shutil.copytree(there, "latest")
    assert load("latest").path == Path("latest")


def test_a_file_of_a_run_leads_to_it(first):
    assert load(first.folder.analysis).path == first.path


def test_without_runs_latest_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="no runs here"):
        load()


@pytest.mark.parametrize("name", ["steps", "buckets", "fabric", "blocks"])
def test_tables_are_the_same_with_and_without_their_file(name, first, tmp_path):
    copy = shutil.copytree(first.path, tmp_path / "copy")
    shutil.rmtree(copy / f"{name}.parquet")
    frame = getattr(load(copy), name)
    assert len(frame) > 0
    assert frame.equals(getattr(first, name))


def test_a_damaged_table_is_made_again(first, tmp_path):
    copy = shutil.copytree(first.path, tmp_path / "copy")
    next((copy / "steps.parquet").iterdir()).write_bytes(b"PAR1 and nothing else")
    assert load(copy).steps.equals(first.steps)


def test_tables_without_records_say_why_there_are_none(first, tmp_path):
    copy = shutil.copytree(
        first.path, tmp_path / "copy", ignore=shutil.ignore_patterns("rank-*", "*.parquet")
    )
    with pytest.raises(InputError, match="no table steps"):
        _ = load(copy).steps


def test_a_run_shows_what_the_terminal_says_of_it(first):
    shown = repr(first)
    for part in (str(first.path), first.analysis.run.model, text.percent(first.point(2).efficiency), "link"):
        assert part in shown
    assert len(shown.splitlines()) < 12


def test_compare_is_what_the_verb_prints(first, second, capsys):
    assert main(["compare", str(first.path), str(second.path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert len(printed.pop("sweep")["rows"]) == 4
    assert printed == files.encode(compare(first, second))


def test_predict_is_what_the_verb_prints(first, capsys):
    overrides = ["topology.link.rate=8gbit", "world_sizes=[2]"]
    assert main(["predict", str(first.path), *overrides, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == files.encode(predict(first, *overrides))


def test_prices_reach_the_comparison(first, second):
    cost = compare(first, second, usd_per_gpu_hour=(2.0, 4.0)).points[1].cost
    assert cost.other.usd_per_million_samples is not None
    assert cost.per_usd is not None
    assert cost.per_usd.value == pytest.approx(0.5 * compare(first, second).points[1].ratio.value)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda run: load(run.path / "nothing"), "no such folder"),
        (lambda run: run.point(3), "no world size 3; the run has 1, 2"),
        (lambda run: predict(run, "world_size=[2]"), "did you mean world_sizes"),
        (lambda run: predict(run, config_dir="/nowhere"), "no such folder"),
    ],
)
def test_wrong_input_is_one_line(ask, said, first):
    with pytest.raises(InputError, match=said) as caught:
        ask(first)
    assert len(str(caught.value).splitlines()) == 1
