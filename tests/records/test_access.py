"""Which run a path names."""

from __future__ import annotations

import pytest

from scaling.errors import InputError
from scaling.records.access import find_run
from scaling.records.files import write_text
from scaling.records.paths import RunFolder


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
