"""`.ci/run` chooses groups of slow tests by the files that the last commits touched."""

import shutil
import subprocess
from pathlib import Path

import pytest
from support.plugin import GROUPS

RUN = Path(__file__).parents[1] / ".ci" / "run"


@pytest.fixture
def listed(tmp_path):
    """listed(file...) commits each file by itself, in order, and gives the groups that are chosen then."""

    def git(*words):
        who = ("-c", "user.name=a", "-c", "user.email=a@localhost")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    def commit(*paths):
        for path in paths:
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(file.read_text() + "x" if file.exists() else "")
            git("add", path)
            git("commit", "-m", path)
        done = subprocess.run([tmp_path / ".ci/run", "--list"], capture_output=True, text=True, check=True)
        return done.stdout.split()

    git("init")
    (tmp_path / ".ci").mkdir()
    shutil.copy(RUN, tmp_path / ".ci/run")
    return commit


def test_what_was_touched_last_comes_first(listed):
    assert listed("docs/method.md") == []
    assert listed("scaling/report/text.py", "tests/slurm/demo.py") == ["more", "slurm", "browser"]
    assert listed("scaling/report/text.py") == ["more", "browser", "slurm"]


def test_what_only_older_commits_touched_is_left_out(listed):
    assert listed("conf/config.yaml", *["docs/method.md"] * 49) == ["launches", "wheel"]
    assert listed("docs/method.md") == []


def test_every_group_can_be_chosen(listed):
    touched = listed(
        "scaling/worker/a.py",
        "scaling/records/a.py",
        "scaling/report/a.py",
        "tests/slurm/a.py",
        "pyproject.toml",
    )
    assert sorted(touched) == sorted(GROUPS)
