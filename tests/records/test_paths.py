"""The run folder: names."""

import pytest

from scaling.errors import InputError
from scaling.records.files import write_text
from scaling.records.paths import RunFolder, find_run


def test_launches_are_in_the_order_of_their_numbers(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.launches() == []
    for index in (10, 2, 0):
        folder.launch(index).path.mkdir(parents=True)
    (tmp_path / "launches" / "notes").mkdir()
    assert [launch.index for launch in folder.launches()] == [0, 2, 10]


def test_names_are_those_of_the_format(tmp_path):
    folder = RunFolder(tmp_path)
    names = {
        "config": "config.yaml",
        "plan": "plan.json",
        "command": "command.txt",
        "status": "status.json",
        "analysis": "analysis.json",
        "timeline": "timeline.json",
        "report_html": "report.html",
        "report_md": "report.md",
        "report_txt": "report.txt",
    }
    assert {name: getattr(folder, name).name for name in names} == names
    assert folder.table("steps") == tmp_path / "steps.parquet"
    launch = folder.launch(1)
    assert launch.rank(3) == tmp_path / "launches" / "1" / "rank-3.jsonl"
    assert [p.name for p in (launch.env(3), launch.error(3), launch.log(3))] == [
        "env-3.json",
        "error-3.json",
        "log-3.txt",
    ]


@pytest.mark.parametrize("name", ["²", "٣", "9" * 200, "-1", "1.5"])
def test_a_folder_whose_name_is_no_number_is_no_launch(tmp_path, name):
    folder = RunFolder(tmp_path)
    folder.launch(0).path.mkdir(parents=True)
    (tmp_path / "launches" / name).mkdir()
    assert [launch.index for launch in folder.launches()] == [0]


def test_a_folder_without_a_plan_is_no_run(tmp_path):
    with pytest.raises(InputError, match="not a run"):
        find_run(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        find_run(tmp_path / "nowhere")
    write_text(RunFolder(tmp_path).plan, "{}")
    assert find_run(tmp_path).path == tmp_path


def test_a_file_of_a_run_names_the_run(tmp_path):
    write_text(RunFolder(tmp_path).plan, "{}")
    assert find_run(tmp_path / "plan.json").path == tmp_path


def test_of_a_multirun_one_run_is_to_be_named(tmp_path):
    for name in ("0", "1"):
        (tmp_path / name).mkdir()
        write_text(RunFolder(tmp_path / name).plan, "{}")
    with pytest.raises(InputError, match=f"name one of {tmp_path}/0, {tmp_path}/1"):
        find_run(tmp_path)
