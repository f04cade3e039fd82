"""`scaling run` is a real Hydra application: its flags, grammar and completion work.

A folder of configuration of one's own adds names; it takes none that the program has.

What a file of a group may set: its own group, a topology also its links and its cluster; never code by the way.

The command line of `scaling launch`: what is ours, and what is the script's.
"""

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from support.commands import environment, refused
from support.processes import captured

from scaling import resources
from scaling.cli.main import main
from scaling.config import messages
from scaling.config.compose import composed, cut, named, overrides, requests, require_readable
from scaling.errors import InputError
from scaling.hardware.devices import Gpu, Machine
from scaling.resources import folder
from scaling.settings.environment import is_of_links, is_of_machine

EXPERIMENTS = sorted(path.stem for path in (folder("conf") / "experiment").glob("*.yaml"))


def test_cfg_job_prints_the_composed_config(capsys):
    assert main(["run", "--cfg", "job", "model=mlp", "model.width=77"]) == 0
    assert "width: 77" in capsys.readouterr().out


def test_help_lists_groups_and_keys(capsys):
    assert main(["run", "--help"]) == 0
    out = capsys.readouterr().out
    assert "emulated_nvlink, emulated_pcie, h100_pcie, hgx_b200" in out
    assert "batch_per_rank" in out


@pytest.mark.slow
def test_multirun_sweeps():
    asked = requests("run", ["-m", "topology=emulated_pcie,emulated_nvlink", "seed=range(2)"])
    assert asked.multirun
    assert [(r.spec.topology.name, r.spec.seed) for r in asked.items] == [
        ("emulated_pcie", 0),
        ("emulated_pcie", 1),
        ("emulated_nvlink", 0),
        ("emulated_nvlink", 1),
    ]


def test_new_keys_take_a_plus():
    spec = requests("run", ["+env.NCCL_P2P_DISABLE=1"]).items[0].spec
    assert spec.env == {"NCCL_P2P_DISABLE": "1"}


def test_any_rate_is_taken():
    spec = requests("run", ["topology=emulated_pcie", "topology.link.rate=37.5mbit"]).items[0].spec
    assert spec.topology.link.rate_bit_s == 37_500_000


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_sets_what_its_file_names(name):
    (asked,) = requests("run", [f"experiment={name}", "topology=emulated_pcie"]).items
    composed = OmegaConf.create(asked.yaml)
    named = OmegaConf.load(folder("conf") / "experiment" / f"{name}.yaml")
    groups = [override for default in named.pop("defaults", []) for override in default.items()]
    assert [composed[group.split("/")[-1]].name for group, _ in groups] == [preset for _, preset in groups]
    assert OmegaConf.merge(composed, named) == composed


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("scaling r", {"run", "report"}),
        ("scaling run model=m", {"model=mlp"}),
        ("scaling run topology=emulated", {"topology=emulated_nvlink", "topology=emulated_pcie"}),
        ("scaling run mode=strong topology.link.ra", {"topology.link.rate="}),
    ],
)
def test_completion(line, expected, monkeypatch, capsys):
    monkeypatch.setenv("COMP_LINE", line)
    assert main(["-sc", "query=bash"]) == 0
    assert set(capsys.readouterr().out.split()) == expected


@pytest.mark.parametrize(
    ("asked", "like"),
    [
        (("topology=nvlink_node_no_p2p",), ("topology=nvlink_node",)),
        (
            ("topology=local_no_p2p", "launcher=slurm", "topology.ranks_per_host=4"),
            ("topology=local", "launcher=slurm", "topology.ranks_per_host=4"),
        ),
    ],
)
def test_a_preset_without_peer_to_peer_differs_in_one_variable(asked, like):
    off, on = (requests("plan", list(words)).items[0].spec for words in (asked, like))
    assert (on.env, off.env) == ({}, {"NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"})
    assert off.topology.backend == "nccl"
    named = replace(off.topology, name=on.topology.name, note=on.topology.note)
    assert replace(off, env={}, topology=named) == on


def test_without_gpus_there_is_no_peer_to_peer_to_switch_off():
    with pytest.raises(InputError, match="NCCL needs CUDA devices"):
        requests("plan", ["topology=local_no_p2p", "topology.device=cpu"])


def test_ranks_of_one_gpu_are_planned_with_what_they_need_and_labelled(monkeypatch, capsys):
    one = Machine(cores=8, gpus=(Gpu(name="H100", capability=(9, 0)),))
    monkeypatch.setattr("scaling.config.compose.find_machine", lambda: one)
    (request,) = requests("plan", ["topology=local_shared_gpu"]).items
    spec = request.spec
    assert (spec.topology.device, spec.topology.backend, spec.world_sizes) == ("cuda", "nccl", (1, 2))
    assert spec.env == {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "16"}
    assert main(["plan", "topology=local_shared_gpu"]) == 0
    out = capsys.readouterr().out
    assert "one GPU shared: its ranks share one device's time" in out
    assert "one GPU shared without MPS" in out or "one GPU shared by MPS" in out
    assert "mps.sh" in out
    with pytest.raises(InputError, match="topology=local_shared_gpu"):
        requests("plan", ["topology=local", "topology.ranks_per_host=2"])


@pytest.mark.parametrize("verb", ["plan", "run"])
def test_and_refused_in_one_line_where_there_is_no_gpu(verb, capsys, monkeypatch):
    monkeypatch.setattr("scaling.config.compose.find_machine", lambda: Machine(cores=8))
    assert main([verb, "topology=local_shared_gpu"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert "no CUDA device was found here" in told.err


def test_completion_in_a_real_shell():
    script = f"""
        scaling() {{ {sys.executable} -m scaling.cli "$@"; }}
        eval "$(scaling -sc install=bash)"
        COMP_LINE='scaling run model=syn' COMP_WORDS=(scaling run model=syn) COMP_CWORD=2
        _scaling 2>/dev/null; echo "${{COMPREPLY[@]}}"
    """
    done = captured(["bash", "-c", script], check=True, env=environment())
    assert done.stdout.strip() == "model=synthetic"


@pytest.mark.parametrize("words", [["--config-dir", "mine"], ["--config-dir=mine"], ["-cd", "mine"]])
def test_it_is_found_on_a_command_line(words):
    assert named(["model=mlp", *words]) == Path("mine")


def test_a_command_line_without_one():
    assert named(["model=mlp", "--config-dir"]) is None


def test_a_copy_of_ours_that_was_changed_is_refused_and_the_file_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder("conf") / "topology", "mine/topology")
    require_readable(Path("mine"))  # as it is, it says the same as ours
    changed = Path("mine/topology/nvlink_node.yaml")
    changed.write_text(changed.read_text().replace("partition: nvlink", "partition: fast"))
    refused(
        capsys,
        ["plan", "--config-dir", "mine", "topology=nvlink_node"],
        "scaling: mine/topology/nvlink_node.yaml: topology=nvlink_node is one of those",
    )


def spec_of(capsys, *options):
    """What a plan of one rank on this machine would run."""
    assert main(["plan", *options, "topology=local", "world_sizes=[1]", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["spec"]


def test_a_folder_with_another_programs_config_yaml_adds_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("conf").mkdir()
    Path("conf/config.yaml").write_text("database: mysql\n")
    assert spec_of(capsys, "--config-dir", "conf") == spec_of(capsys)


def test_our_own_folder_as_config_dir_changes_nothing(capsys):
    assert spec_of(capsys, "--config-dir", str(folder("conf"))) == spec_of(capsys)


LAUGHS = "".join(f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9) if k else 'x'}]\n" for k in range(9))
"""Aliases of aliases: 400 bytes that stand for 9^8 values."""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (LAUGHS.encode(), "more than 20000 values, with its aliases written out"),
        (b"a: &a [*a]", "more than 20000 values"),
        (b"a: " + b"[" * 5000 + b"]" * 5000, "nested more than 64 levels deep"),
        (b"name: caf\xe9", "cannot be read (it is not UTF-8 (byte 9))"),
        (b"#" * (2 << 20), "cannot be read (it has 2 MiB, more than the limit of 1 MiB)"),
        (b"a: 'open", "not the YAML that is expected (while scanning a quoted scalar"),
    ],
)
def test_a_file_that_cannot_be_bounded_is_refused_before_hydra_reads_it(tmp_path, capsys, text, why):
    path = tmp_path / "topology" / "mine.yaml"
    path.parent.mkdir()
    path.write_bytes(text)
    said = refused(capsys, ["plan", "--config-dir", str(tmp_path), "topology=mine"], f"scaling: {path}: ")
    assert why in said


def test_a_pipe_in_it_is_not_waited_for(tmp_path):
    (tmp_path / "topology").mkdir()
    os.mkfifo(tmp_path / "topology" / "mine.yaml")
    with pytest.raises(InputError, match="it is a pipe; a regular file is expected"):
        require_readable(tmp_path)


def test_aliases_are_read_where_they_are_few():
    assert messages.load("a: &a {rate: 1e-4}\nb: *a\n", "here") == {"a": {"rate": 1e-4}, "b": {"rate": 1e-4}}


GLOBAL = "# @package _global_\n"
REFUSED = {
    "hydra": ("topology", GLOBAL + "hydra:\n  callbacks: {x: {_target_: os.getcwd}}\n"),
    "another's target": ("topology", GLOBAL + "model: {_target_: os.system}\n"),
    "preload": ("topology", GLOBAL + "env: {LD_PRELOAD: /tmp/x.so}\n"),
    "plugin": ("topology", GLOBAL + "env: {NCCL_NET_PLUGIN: /tmp/x.so}\n"),
    "a file of NCCL's": ("topology", GLOBAL + "env: {NCCL_DEBUG_FILE: /home/user/.bashrc}\n"),
    "on the cluster": ("topology", GLOBAL + "cluster: {env: {PYTHONPATH: /tmp}}\n"),
    "shell": ("topology", GLOBAL + "cluster: {setup: [id]}\n"),
    "an image": ("topology", GLOBAL + "cluster: {container: {image: x}}\n"),
    "a prolog": ("topology", GLOBAL + "cluster: {srun: {task-prolog: /tmp/x.sh}}\n"),
    "a text that is YAML": ("topology", GLOBAL + "'model: {_target_: os.system}'\n"),
    "another shape": ("topology", GLOBAL + "cluster: {sbatch: 5}\n"),
    "sbatch": ("topology", GLOBAL + "cluster: {sbatch: {output: /home/user/.bashrc}}\n"),
    "where it writes": ("topology", GLOBAL + "run_dir: /tmp/x\n"),
    "where it uploads": ("topology", GLOBAL + "tracking: {mode: online, entity: them}\n"),
    "hydra's own group": ("topology", "defaults: [override /hydra/job_logging: none]\nname: x\n"),
    "an experiment": ("topology", "defaults: [/experiment/demo]\nname: x\n"),
    "moved": ("topology", "defaults: [local@model]\nname: x\n"),
    "a package of another": ("topology", "# @package model\n_target_: os.system\n"),
    "everywhere": ("model", GLOBAL + "run_dir: /tmp/x\n"),
    "data everywhere": ("data", GLOBAL + "env: {LD_PRELOAD: x}\n"),
    "inside of arguments": ("model", "name: x\n_target_: a.b\nargs: {inner: {_target_: os.system}}\n"),
    "the environment": ("model", "name: ${oc.env:HOME}\n_target_: a.b\n"),
    "by way of another": ("measure", "name: '${${oc.select:x}}'\n"),
    "libraries": ("cluster", "env: {LD_LIBRARY_PATH: /tmp}\n"),
    "the interpreter": ("cluster", "env: {SCALING_PYTHON: /tmp/x}\n"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_more_than_its_own_is_refused_in_one_line(case, tmp_path):
    group, text = REFUSED[case]
    file = tmp_path / group / "theirs.yaml"
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(InputError) as refused:
        requests("plan", ["--config-dir", str(tmp_path), f"{group}=theirs"])
    assert str(file) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_no_file_takes_the_place_of_the_schema(tmp_path):
    (tmp_path / "schema.yaml").write_text("anything: 1\n")
    with pytest.raises(InputError, match="in none of the groups' folders"):
        requests("plan", ["--config-dir", str(tmp_path), "topology.device=cpu", "model=synthetic"])


def test_a_topology_of_ones_own_sets_its_links_and_its_cluster(tmp_path):
    (tmp_path / "topology").mkdir()
    (tmp_path / "topology/mine.yaml").write_text(
        GLOBAL + "defaults: [/topology/local@topology, _self_]\ntopology: {name: mine, device: cpu}\n"
        "env: {NCCL_IB_HCA: mlx5}\ncluster: {partition: mine, sbatch: {licenses: machine}}\n"
    )
    (request,) = requests("plan", ["--config-dir", str(tmp_path), "topology=mine"]).items
    assert (request.spec.topology.name, request.spec.env) == ("mine", {"NCCL_IB_HCA": "mlx5"})


@pytest.mark.parametrize(
    "word", [f"{p.parent.name}={p.stem}" for p in sorted(resources.folder("conf").glob("[clt]*/*.yaml"))]
)
def test_what_comes_with_the_program_keeps_to_it(word):
    composed([word])


def test_an_experiment_may_set_everything():
    assert composed(["experiment=demo"]).ddp.bucket_cap_mb == 0.36


def test_a_file_sets_no_variable_that_names_code_or_a_file():
    for name in (
        *("LD_AUDIT", "PYTHONSTARTUP", "BASH_ENV", "PATH", "TRITON_PTXAS_PATH", "HOME", "OPENSSL_CONF"),
        *("SCALING_PYTHON", "SLURM_TASK_PROLOG", "TORCHINDUCTOR_CACHE_DIR", "RDMAV_DRIVERS", "SOME_TOOL"),
        *(
            "NCCL_TUNER_PLUGIN",
            "UCX_MODULE_DIR",
            "CUDA_HOME",
            "OMP_TOOL_LIBRARIES",
            "GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY",
        ),
    ):
        assert not is_of_machine(name)
        assert not is_of_links(name)
    for name in ("NCCL_P2P_DISABLE", "GLOO_SOCKET_IFNAME", "NCCL_ALGO", "NCCL_IB_PKEY"):
        assert is_of_machine(name)
        assert is_of_links(name)
    for name in ("UCX_TLS", "PYTORCH_CUDA_ALLOC_CONF", "OMP_NUM_THREADS", "FI_PROVIDER"):
        assert is_of_machine(name)


@pytest.mark.parametrize(
    ("line", "ours", "script"),
    [
        ("--world-sizes 1,2 train.py", "--world-sizes 1,2", "train.py"),
        ("topology=local train.py lr=0.1 --no-probe", "topology=local", "train.py lr=0.1 --no-probe"),
        ("--no-probe repeats=3 -- train.py -m", "--no-probe repeats=3", "train.py -m"),
        (
            "--time-limit 60 --world-sizes=1,2 train.py --world-sizes 3",
            "--time-limit 60 --world-sizes=1,2",
            "train.py --world-sizes 3",
        ),
        ("--world-sizes 1,2", "--world-sizes 1,2", ""),
        ("-cd mine --world-sizes 1,2 train.py", "-cd mine --world-sizes 1,2", "train.py"),
    ],
)
def test_the_script_is_the_first_word_that_is_neither_option_nor_override(line, ours, script):
    assert cut(line.split()) == (ours.split(), script.split())


def test_a_file_with_an_equals_sign_is_a_script(tmp_path):
    path = tmp_path / "lr=1.py"
    path.touch()
    assert cut(["repeats=1", str(path), "a"]) == (["repeats=1"], [str(path), "a"])


def test_launches_are_repeated_unless_it_is_said_otherwise():
    assert overrides(["topology=local"], "1,2") == ["topology=local", "world_sizes=[1,2]", "repeats=2"]
    assert overrides(["repeats=5", "world_sizes=[1,4]"], None) == ["repeats=5", "world_sizes=[1,4]"]


@pytest.mark.parametrize(
    ("words", "sizes", "said"),
    [
        (["model=mlp"], "1,2", "model: the script decides it"),
        (["ddp.bucket_cap_mb=1"], "1,2", "ddp.bucket_cap_mb: the script decides it"),
        ([], None, "--world-sizes is expected"),
        ([], "one", "numbers of ranks are expected"),
    ],
)
def test_what_a_script_decides_is_refused(words, sizes, said):
    with pytest.raises(InputError, match=said):
        overrides(words, sizes)
