"""`scaling run` is a real Hydra application: its flags, grammar and completion work."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from scaling.cli.main import main
from scaling.config.compose import requests
from scaling.errors import InputError
from scaling.hardware.devices import Gpu, Machine
from scaling.resources import folder

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
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.strip() == "model=synthetic"
