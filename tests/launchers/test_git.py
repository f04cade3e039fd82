"""Which code was measured."""

import os

import pytest
from support.processes import captured

from scaling.cli.verbs import run as verb
from scaling.config.compose import requests
from scaling.launchers.jobs import commit, create, jobs_of

ENV = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CEILING_DIRECTORIES": "/"}


@pytest.fixture
def repository(tmp_path):
    def git(*words):
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = captured(["git", *who, *words], cwd=tmp_path, env=ENV, check=True)
        return done.stdout.strip()

    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-qm", "one")
    return tmp_path, git("rev-parse", "HEAD")


def test_the_commit_and_whether_files_were_changed_since(repository):
    folder, head = repository
    (folder / "new").write_text("not tracked")
    assert commit(folder) == head
    (folder / "file").write_text("two")
    assert commit(folder) == f"{head}-dirty"


def test_a_run_that_goes_on_with_other_code_says_so(repository, monkeypatch, capsys):
    folder, head = repository
    monkeypatch.chdir(folder)
    monkeypatch.setattr(verb, "_run", lambda *_, **__: 0)  # what is measured then does not matter here
    asked = ["model=mlp", "topology=local", "topology.device=cpu", "world_sizes=[1]", "run_dir=run"]
    create(jobs_of(requests("run", asked).items, multirun=False)[0])
    assert verb.main(["--resume", "run"]) == 0
    assert capsys.readouterr().err == ""
    (folder / "file").write_text("two")
    assert verb.main(["--resume", "run"]) == 0
    told = f"scaling: run: began with commit {head}, and what is left is measured with {head}-dirty\n"
    assert capsys.readouterr().err == told


def test_outside_a_repository_and_without_git_there_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit(tmp_path) == ""
    monkeypatch.setenv("PATH", "")
    assert commit(tmp_path) == ""
