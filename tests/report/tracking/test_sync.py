"""Uploading: a server that answers, one that is away, one that fails, one that hangs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.processes import wait_until

from scaling.errors import InputError, ScalingError
from scaling.records.paths import RunFolder
from scaling.report.tracking import sync
from scaling.report.tracking import wandb as report

pytestmark = pytest.mark.usefixtures("home")

STEM = "20260102-030405-c0ffee"
ALL = {"n1", "n2", "summary"}
SLACK_S = 20
"""Starting W&B's programs on a busy machine."""


@pytest.fixture
def log(folder, logged):
    """log(mode, steps): the warning of log_run."""

    def call(mode="offline", steps=6):
        return report.log_run(folder, logged.plan(mode), logged.analysis(), logged.histories(steps))

    return call


def helpers(folder) -> list[str]:
    """Command lines of processes that were started for a run's folder and are still there."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"WANDB_DIR={folder.wandb.resolve()}\0" in (process / "environ").read_text(errors="replace"):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def assert_no_helper_is_left(folder):
    wait_until(lambda: helpers(folder) == [], seconds=SLACK_S)


@pytest.mark.slow
def test_online_uploads_and_replaces_every_run(log, wandb_server):
    for steps in (200, 6):
        assert log("online", steps) is None
        taken = {run: len(lines) for run, lines in wandb_server.taken.items()}
        assert taken == {f"{STEM}-n1": steps, f"{STEM}-n2": steps, f"{STEM}-summary": 3}


@pytest.mark.slow
def test_sync_uploads_what_was_logged_offline_once(log, folder, wandb_server):
    log()
    assert wandb_server.taken == {}
    said = sync.sync(folder, bound_s=60)
    assert said.startswith("3 W&B runs uploaded, see http://")
    assert said.endswith("c0ffee-summary")
    assert len(wandb_server.taken) == 3
    assert sync.sync(folder) == "3 W&B runs uploaded before, nothing to do"


@pytest.mark.slow
def test_a_settings_file_of_the_run_chooses_neither_server_nor_entity(log, folder, wandb_server, monkeypatch):
    """W&B reads wandb/settings of the working directory; the key would go to the server that it names."""
    log()
    (folder.wandb / "wandb/settings").write_text(
        "[default]\nbase_url = http://127.0.0.1:9\nentity = theirs\nproject = loot\n"
    )
    monkeypatch.chdir(folder.path)
    monkeypatch.delenv("WANDB_BASE_URL")
    (folder.path.parent / "asked").mkdir()
    (folder.path.parent / "asked/settings").write_text(f"[default]\nbase_url = {wandb_server.url}\n")
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(folder.path.parent / "asked"))  # the user's own
    assert sync.sync(RunFolder("."), bound_s=60).startswith("3 W&B runs uploaded, see http://")
    assert len(wandb_server.taken) == 3


def test_online_without_a_key_logs_offline(log, folder, wandb_files):
    warning = log("online")
    assert "No API key" in warning
    assert "scaling sync" in warning
    assert "\n" not in warning
    assert set(wandb_files.read_all(folder.path)) == ALL


@pytest.mark.slow
def test_a_server_that_is_away_is_a_warning(log, folder, wandb_files, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(report, "ONLINE_BOUND_S", 2.0)
    begin = time.monotonic()
    warning = log("online")
    assert time.monotonic() - begin < 2 + SLACK_S
    assert "3 of 3 W&B runs not uploaded" in warning
    assert set(wandb_files.read_all(folder.path)) == ALL


@pytest.mark.slow
def test_a_server_that_hangs_costs_no_more_than_the_bound(
    log, folder, wandb_files, wandb_server, monkeypatch, tmp_path
):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    wandb_server.wait_s = 30
    monkeypatch.setattr(report, "ONLINE_BOUND_S", 3.0)
    begin = time.monotonic()
    warning = log("online")
    assert time.monotonic() - begin < 3 + SLACK_S
    assert "not done within 3 s" in warning
    assert f"`scaling sync {folder.path}` tries again" in warning
    assert set(wandb_files.read_all(folder.path)) == ALL
    assert_no_helper_is_left(folder)
    assert list((tmp_path / "temporary").iterdir()) == []
    wandb_server.wait_s = 0.0
    assert sync.sync(folder, bound_s=60).startswith("3 W&B runs uploaded")


@pytest.mark.slow
def test_a_server_that_fails_is_a_warning(log, folder, wandb_files, wandb_server, monkeypatch):
    wandb_server.status = 500
    monkeypatch.setattr(report, "ONLINE_BOUND_S", 5.0)
    warning = log("online")
    assert "3 of 3 W&B runs not uploaded" in warning
    assert "\n" not in warning
    assert set(wandb_files.read_all(folder.path)) == ALL
    assert_no_helper_is_left(folder)


@pytest.fixture
def foreign(folder) -> dict[str, str]:
    """What a user's own training has in the same folder: a run, a link to it and a file; as `files` lists it."""
    run = folder.path / "wandb" / "offline-run-20250102_030405-mine"
    run.mkdir(parents=True)
    (run / "run-mine.wandb").write_text("weeks of training")
    (folder.path / "wandb" / "latest-run").symlink_to(run.name)
    (folder.path / "wandb" / "debug.log").symlink_to("a/log/that/is/gone")
    (folder.path / "wandb" / "settings").write_text("theirs")
    return files(folder)


def files(folder) -> dict[str, str]:
    """What there is in `wandb` but our own runs."""
    found = {}
    for path in sorted((folder.path / "wandb").rglob("*")):
        below = path.relative_to(folder.path / "wandb")
        if STEM not in below.parts[0]:
            found[str(below)] = (
                str(path.readlink()) if path.is_symlink() else path.is_file() and path.read_text()
            )
    return found


@pytest.mark.slow
def test_other_wandb_runs_in_the_same_folder_are_left_alone(log, folder, foreign):
    for steps in (3, 6):
        assert log(steps=steps) is None
        assert len(list(folder.path.glob(f"wandb/offline-run-*-{STEM}-*"))) == len(ALL)
        assert files(folder) == foreign


def test_nor_does_a_failure_take_them_along(log, folder, foreign):
    assert log() is None
    before = sorted(folder.path.rglob("*"))
    with pytest.raises(ScalingError, match="not done within"):
        sync.write(
            folder, {"runs": [{"id": f"{STEM}-{name}"} for name in ("n1", "n2", "summary")]}, bound_s=0.02
        )
    assert sorted(folder.path.rglob("*")) == before
    assert files(folder) == foreign


@pytest.mark.slow
def test_online_uploads_none_of_them(log, folder, foreign, wandb_server):
    assert log("online") is None
    assert set(wandb_server.taken) == {f"{STEM}-{name}" for name in ALL}
    assert foreign.items() <= files(folder).items()  # wandb sync leaves its own log beside them


def test_wandb_runs_behind_a_link_are_not_uploaded(folder, tmp_path):
    (tmp_path / "of-another" / "offline-run-20261127_000000-abc").mkdir(parents=True)
    folder.wandb.mkdir(exist_ok=True)
    (folder.wandb / "wandb").symlink_to(tmp_path / "of-another")
    with pytest.raises(InputError, match="is a link; the folder of this run's own W&B runs is expected"):
        sync.sync(folder)


def test_sync_says_why_there_is_nothing_to_do(folder):
    with pytest.raises(ScalingError, match="no W&B runs to upload"):
        sync.sync(folder)
    run = folder.path / "wandb" / "offline-run-20260102_030405-x-n1"
    run.mkdir(parents=True)
    (run / "run-x-n1.wandb.synced").touch()
    assert sync.sync(folder) == "1 W&B run uploaded before, nothing to do"
