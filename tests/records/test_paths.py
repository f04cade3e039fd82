"""The run folder: names."""

from __future__ import annotations

import pytest

from scaling.records.paths import RunFolder


def test_launches_are_in_the_order_of_their_numbers(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.launches() == []
    for index in (10, 2, 0):
        folder.launch(index).path.mkdir(parents=True)
    (tmp_path / "launches" / "notes").mkdir()
    assert [launch.index for launch in folder.launches()] == [0, 2, 10]


def test_names_are_those_of_the_format(tmp_path):
    folder = RunFolder(tmp_path)
    top = (
        "config",
        "plan",
        "command",
        "status",
        "analysis",
        "timeline",
        "report_html",
        "report_md",
        "report_txt",
    )
    assert [getattr(folder, name).name for name in top] == [
        "config.yaml",
        "plan.json",
        "command.txt",
        "status.json",
        "analysis.json",
        "timeline.json",
        "report.html",
        "report.md",
        "report.txt",
    ]
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
