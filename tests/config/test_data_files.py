"""What a file of a group may set: its own group, a topology also its links and its cluster; never code by the way."""

from __future__ import annotations

import pytest

from scaling import resources
from scaling.config.compose import composed, requests
from scaling.errors import InputError
from scaling.settings.environment import is_of_links, loads_code

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


def test_variables_that_load_code_are_known():
    for name in (
        "LD_AUDIT",
        "LD_PRELOAD",
        "PYTHONSTARTUP",
        "BASH_ENV",
        "NCCL_TUNER_PLUGIN",
        "PATH",
        "TRITON_PTXAS_PATH",
    ):
        assert loads_code(name)
        assert not is_of_links(name)
    for name in ("NCCL_P2P_DISABLE", "GLOO_SOCKET_IFNAME", "NCCL_ALGO"):
        assert is_of_links(name)
        assert not loads_code(name)
