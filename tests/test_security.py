"""Nothing that a run folder contains is executed, no secret is written into one, and other users cannot change one."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from support.commands import refused

import scaling
from scaling.cli.main import main
from scaling.config.compose import changed, requests
from scaling.config.topology import to_env
from scaling.errors import InputError
from scaling.launchers.jobs import Job, create, plan_request
from scaling.launchers.slurm import queue
from scaling.records import baselines
from scaling.records.paths import RunFolder, require_own
from scaling.records.run import read_plan
from scaling.settings.environment import is_secret

ROOT = Path(scaling.__file__).parent
SOURCES = sorted(
    path
    for folder in (ROOT, ROOT.parent / "launch", ROOT.parent / "simulator" / "scaling_simulator")
    for path in folder.rglob("*.py")
    if "_shipped" not in path.parts
)

# Source

MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "jsonpickle", "joblib", "code"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
CALLS = {
    ("os", "system"),
    ("os", "popen"),
    ("yaml", "load"),
    ("yaml", "load_all"),
    ("yaml", "full_load"),
    ("yaml", "unsafe_load"),
    ("hydra.utils", "instantiate"),
    ("hydra.utils", "get_class"),
    ("torch", "load"),
    ("np", "load"),
    ("pl", "read_ndjson"),
}
IMPORTS_BY_NAME = {
    "scaling/__init__.py",  # the public names
    "scaling/cli/main.py",  # our own verbs
    "scaling/cli/verbs/trace.py",  # our own modules, while files are read
    "scaling/worker/data/workload.py",  # the user's own target
    "scaling/worker/models/extra.py",  # transformers
    "launch/emulated_hosts.py",  # pyroute2
}
"""Files that import what a string names, and what that is."""


def calls(path: Path) -> list[tuple[str, str, ast.Call]]:
    """(module or "", function, node) of every call of a plain or dotted name."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            module, _, name = ast.unparse(node.func).rpartition(".")
            found.append((module, name, node))
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT.parent)))
def test_no_module_executes_what_it_reads(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {a.name.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    imported |= {str(n.module).split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert not imported & MODULES
    for module, name, node in calls(path):
        assert not (module == "" and name in BUILTINS), ast.unparse(node)
        assert (module, name) not in CALLS, ast.unparse(node)
        assert not any(k.arg == "shell" and ast.unparse(k.value) != "False" for k in node.keywords), (
            ast.unparse(node)
        )
        assert name != "import_module" or str(path.relative_to(ROOT.parent)) in IMPORTS_BY_NAME, path


# Run folders


@pytest.fixture(scope="module")
def original(simulate, cluster, tmp_path_factory):
    path = tmp_path_factory.mktemp("security") / "run"
    simulate(cluster.Truth(world_sizes=(1, 2), rounds=3, steps=3), path)
    (asked,) = requests("run", ["topology=emulated_pcie", "world_sizes=[1,2]"]).items
    RunFolder(path).config.write_text(asked.yaml, encoding="utf-8")
    return path


@pytest.fixture
def run(original, tmp_path):
    return RunFolder(shutil.copytree(original, tmp_path / "run"))


@pytest.fixture
def canary(tmp_path, monkeypatch):
    """A module on the import path that leaves a file when it is imported; the path of the trace."""
    trace = tmp_path / "was-imported"
    (tmp_path / "canary_module.py").write_text(f"open({str(trace)!r}, 'w').close()\ndef factory(**_): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield trace
    sys.modules.pop("canary_module", None)


def edit(path: Path, change) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def with_targets(plan):
    plan["spec"]["model"]["target"] = "canary_module.factory"
    plan["spec"]["data"]["target"] = "canary_module.factory"


READING = {
    "analyze": lambda path: ["analyze", path],
    "compare": lambda path: ["compare", path, path],
    "predict": lambda path: ["predict", path, "ddp.bucket_cap_mb=1"],
    "report": lambda path: ["report", path],
    "status": lambda path: ["status", path],
}


@pytest.mark.parametrize("verb", READING)
def test_a_target_in_a_run_folder_is_not_imported_by_a_verb_that_reads(verb, run, canary, capsys):
    edit(run.plan, with_targets)
    text = re.sub(r"_target_: .*", "_target_: canary_module.factory", run.config.read_text())
    text += "defaults: [canary_module]\n"
    text += "hydra:\n  searchpath: ['pkg://canary_module']\n  callbacks:\n    x: {_target_: canary_module.factory}\n"
    run.config.write_text(text, encoding="utf-8")
    code = main(READING[verb](str(run.path)))
    assert code == 0, capsys.readouterr().err
    assert not canary.exists()
    assert "canary_module" not in sys.modules


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.system ['touch x']", "!!python/name:os.system"])
def test_yaml_makes_no_objects(tag, run, capsys):
    run.config.write_text(f"model: {tag}\n", encoding="utf-8")
    refused(capsys, ["predict", str(run.path)])
    assert not Path("x").exists()


@pytest.mark.parametrize(
    "text", ["${oc.env:HOME}", "\\${oc.env:HOME}", "a ${b} c", "${oc.decode:1}", "${x:-y}"]
)
def test_what_looks_like_an_interpolation_in_a_run_folder_is_text(text, run):
    found = OmegaConf.to_container(OmegaConf.load(run.config))
    found["tracking"]["notes"], found["cluster"]["setup"] = text, [f"export X={text}"]
    base, config = changed(json.dumps(found), [])  # JSON is YAML
    assert base.tracking.notes == config.tracking.notes == text
    assert config.cluster.setup == [f"export X={text}"]


def test_where_a_comparison_is_logged_is_said_by_the_reader_and_not_by_a_run(
    run, original, tmp_path, wandb_server
):
    edit(run.plan, lambda plan: plan["spec"]["tracking"].update(mode="online", entity="them", project="loot"))
    assert main(["compare", str(run.path), str(original), "--into", str(tmp_path / "out")]) == 0
    (logged,) = (tmp_path / "out").rglob("*.wandb")
    assert b"loot" not in logged.read_bytes()
    assert wandb_server.taken == {}


ACTING = {
    "run": lambda path: ["run", "--resume", path],
    "verify": lambda path: ["verify", path],
    "cancel": lambda path: ["cancel", path],
    "sync": lambda path: ["sync", path],
}


@pytest.mark.parametrize("verb", ACTING)
def test_a_run_folder_that_everybody_can_write_to_is_not_acted_on(verb, run, canary, capsys):
    edit(run.plan, with_targets)
    run.plan.chmod(0o666)
    refused(capsys, ACTING[verb](str(run.path)), "everybody can write to it")
    assert not canary.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("verb", ACTING)
def test_a_run_folder_of_another_user_is_not_acted_on(verb, run, capsys):
    os.chown(run.plan, 12345, 12345)
    refused(capsys, ACTING[verb](str(run.path)), "belongs to another user")


@pytest.mark.parametrize("verb", ACTING)
def test_a_run_folder_that_others_can_move_is_not_acted_on(verb, run, tmp_path, capsys):
    """Whoever may rename the folder can put a run of theirs in its place; in /tmp nobody can, by its sticky bit."""
    (tmp_path / "shared").mkdir()
    moved = RunFolder(run.path.rename(tmp_path / "shared" / "run"))
    (tmp_path / "shared").chmod(0o777)
    refused(capsys, ACTING[verb](str(moved.path)), f"{tmp_path / 'shared'}: everybody can write to it")
    (tmp_path / "shared").chmod(0o1777)
    assert require_own(moved) == moved
    if os.geteuid() == 0:
        os.chown(tmp_path / "shared", 12345, 12345)
        refused(capsys, ACTING[verb](str(moved.path)), f"{tmp_path / 'shared'}: belongs to another user")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link away")
@pytest.mark.parametrize("verb", ACTING)
def test_a_run_behind_a_link_of_another_user_is_not_acted_on(verb, run, tmp_path, capsys):
    """Whoever owns the link can turn it to a run of theirs after the check; so can the owner of a link behind it."""
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    theirs.symlink_to(run.path.name)
    mine.symlink_to("theirs")
    assert require_own(RunFolder(mine)).path == mine
    os.chown(theirs, 12345, 12345, follow_symlinks=False)
    for link in (theirs, mine, run.path / "../mine"):
        refused(capsys, ACTING[verb](str(link)), f"{theirs}: belongs to another user")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("below", ["launches", "wandb/offline-run-1-a/run-a.wandb"])
def test_what_a_verb_writes_to_or_uploads_below_a_run_is_its_users_own(below, run, capsys):
    """A copy as root keeps owners: who owns `launches` can put compiled code there, and W&B's files name others."""
    theirs = run.path / below
    theirs.parent.mkdir(parents=True, exist_ok=True)
    theirs.touch()
    os.chown(theirs, 12345, 12345)
    refused(capsys, ACTING["sync"](str(run.path)), f"{theirs}: belongs to another user")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_file_that_is_a_link_into_anothers_folder_is_not_acted_on(run, tmp_path, capsys):
    """The file there is this user's, but the folder's owner can put another one in its place."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    run.plan.rename(theirs / "plan.json")
    run.plan.symlink_to(theirs / "plan.json")
    assert require_own(run) == run
    os.chown(theirs, 12345, 12345)
    refused(capsys, ACTING["verify"](str(run.path)), f"{theirs}: belongs to another user")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_nothing_is_written_below_another_users_folder(run, capsys):
    """Its owner could move a folder there meanwhile, and put links in the place of the files."""
    for table in run.path.glob("*.parquet"):
        shutil.rmtree(table)
    run.analysis.unlink()
    os.chown(run.path, 12345, 12345)
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    for verb in ("analyze", "report"):
        assert main([verb, str(run.path)]) == 0
    out, err = capsys.readouterr()
    assert out.count("answer") == 2
    assert "is not yours, or cannot be written to, so nothing is written there: copy it for a page" in err
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before


def test_a_file_of_any_length_is_not_copied_into_a_baseline(run, tmp_path):
    with run.config.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InputError, match="more than the limit"):
        baselines.keep("main", run, read_plan(run), tmp_path / "baselines")


def test_what_a_link_in_a_run_leads_to_is_not_copied_into_a_baseline(run, tmp_path):
    (tmp_path / "key").write_text("a secret")
    run.config.unlink()
    run.config.symlink_to(tmp_path / "key")
    kept = baselines.keep("main", run, read_plan(run), tmp_path / "baselines")
    assert not kept.config.exists()
    assert kept.plan.is_file()


@pytest.mark.parametrize("job", ["--user=me", "1 2", "$(id)", "", "1;2"])
def test_a_jobs_id_that_is_none_reaches_no_command(job):
    for ask in (queue.cancel, queue.state_of):
        with pytest.raises(InputError, match="not the id of a Slurm job"):
            ask(job)


def test_an_xml_file_of_entities_within_entities_is_refused(tmp_path, capsys):
    levels = "".join(f'<!ENTITY a{k} "{f"&a{k - 1};" * 10}">' for k in range(1, 12))
    bomb = tmp_path / "bomb.xml"
    bomb.write_text(f'<!DOCTYPE system [<!ENTITY a0 "x">{levels}]><system version="1">&a11;</system>')
    refused(capsys, ["import", "nccl-xml", str(bomb), "--into", str(tmp_path / "out.yaml")])


# Written folders


def test_what_is_written_cannot_be_changed_by_other_users(tmp_path, original):
    old = os.umask(0)
    try:
        shutil.copytree(original, tmp_path / "run")
        for name in ("report.html", "analysis.json"):
            (tmp_path / "run" / name).unlink(missing_ok=True)
        assert main(["analyze", str(tmp_path / "run")]) == 0
        (asked,) = requests("run", ["topology=emulated_pcie"]).items
        create(Job(request=asked, plan=plan_request(asked), folder=RunFolder(tmp_path / "parent" / "new")))
    finally:
        os.umask(old)
    written = [tmp_path / "run/report.html", tmp_path / "run/analysis.json", tmp_path / "run/steps.parquet"]
    written += [tmp_path / "parent", *(tmp_path / "parent").rglob("*")]
    assert len(written) > 5
    assert [path for path in written if path.stat().st_mode & 0o002] == []


# Secrets

SECRETS = "WANDB_API_KEY HF_TOKEN AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID SLURM_JWT DB_PASSWORD NCCL_TOKEN2"
PLAIN = "NCCL_IB_PKEY TOKENIZERS_PARALLELISM NCCL_DEBUG OMP_NUM_THREADS KEYBOARD CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize("name", SECRETS.split())
def test_a_secret_is_known_by_its_name_and_is_not_taken_down(name):
    assert is_secret(name)
    for key in ("env", "cluster.env"):
        with pytest.raises(InputError, match="set it in the environment"):
            to_env(key, {name: "x"})


@pytest.mark.parametrize("name", PLAIN.split())
def test_other_variables_are(name):
    assert not is_secret(name)
    assert to_env("env", {name: 1}) == {name: "1"}


def test_of_the_environment_only_what_changes_results_is_recorded(monkeypatch):
    environment = pytest.importorskip("scaling.worker.session.environment")
    for name in (*SECRETS.split(), "EDITOR", "NCCL_DEBUG", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "x")
    found = environment.recorded(["EDITOR"])
    assert {"EDITOR", "NCCL_DEBUG", "SLURM_JOB_ID"} <= found.keys()
    assert not {name for name in found if is_secret(name)}


# The table "Who is trusted" of SECURITY.md: what each row names tries to load code, and is obeyed or not.

PRELOAD = "# @package _global_\nenv: {LD_PRELOAD: /tmp/x.so}\n"


def _set_by(words, folder):
    """Whether the preloaded library reaches the ranks' environment."""
    try:
        (request,) = requests("plan", ["--config-dir", str(folder), "topology=local", *words]).items
    except InputError:
        return False
    return request.spec.env.get("LD_PRELOAD") == "/tmp/x.so"


def _by_command_line(folder, run, canary):
    return _set_by(["+env.LD_PRELOAD=/tmp/x.so"], folder)


def _by_experiment(folder, run, canary):
    (folder / "experiment").mkdir()
    (folder / "experiment/theirs.yaml").write_text(PRELOAD)
    return _set_by(["experiment=theirs"], folder)


def _by_target(folder, run, canary):
    (request,) = requests("plan", ["model=custom", "model._target_=canary_module.factory"]).items
    return request.spec.model.target == "canary_module.factory"


def _by_topology(folder, run, canary):
    (folder / "topology").mkdir()
    (folder / "topology/theirs.yaml").write_text(PRELOAD)
    return _set_by(["topology=theirs"], folder)


def _by_own_run(folder, run, canary):
    return _acted_on(run)


def _by_run_of_others(folder, run, canary):
    run.plan.chmod(0o666)
    return _acted_on(run)


def _acted_on(run):
    try:
        return require_own(run) == run
    except InputError:
        return False


def _by_trace(folder, run, canary):
    pickled = b"cos\nsystem\n(S'touch " + str(canary).encode() + b"'\ntR."
    for name in ("trace.json", "trace.pkl", "trace.pt"):
        (folder / name).write_bytes(pickled)
        assert main(["trace", str(folder / name)]) == 1
    return canary.exists()


def _by_other_ranks(folder, run, canary):
    """torch trusts ranks: its stores unpickle. What the harness itself sends is JSON and tensors."""
    return not any("_object(" in path.read_text() for path in SOURCES if "worker" in path.parts)


TRUST = {
    "your command line": _by_command_line,
    "files of `experiment/`": _by_experiment,
    "`model._target_`": _by_target,
    "all else in files": _by_topology,
    "a run folder that you made": _by_own_run,
    "another user's run folder": _by_run_of_others,
    "profiler traces": _by_trace,
    "the other ranks": _by_other_ranks,
}


def trusted():
    """Each row's first words and whether it is trusted."""
    text = (ROOT.parent / "SECURITY.md").read_text().partition("## Who is trusted")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.split("|")[1:3]] for line in text.splitlines() if line.startswith("|")
    ]
    return [(name, answer == "yes") for name, answer in rows[2:]]


@pytest.mark.parametrize(("row", "answer"), trusted())
def test_what_the_table_trusts_is_obeyed_and_nothing_else(row, answer, run, canary, tmp_path):
    (tried,) = [check for name, check in TRUST.items() if row.startswith(name)]
    folder = tmp_path / "theirs"
    folder.mkdir()
    assert tried(folder, run, canary) == answer
