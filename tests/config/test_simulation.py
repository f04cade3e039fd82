"""Command lines that ask for a simulation, and those that are refused in one line."""

from __future__ import annotations

import pytest
from support.commands import refused

from scaling.config.simulation import to_simulation
from scaling.errors import InputError


def test_a_simulated_machine_has_as_many_hosts_as_its_world_size_needs():
    asked = to_simulation(
        ["topology=simulated_hgx_h100", "world_sizes=[8,4096]", "parallel=fsdp,hsdp", "model=gpt2"]
    )
    assert asked.spec.topology.hosts == 512
    assert asked.spec.topology.accelerator == "NVIDIA H100 80GB HBM3"
    assert asked.strategies == ("fsdp", "hsdp")
    assert asked.spec.world_sizes == (8, 4096)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("parallel=cp", "context parallel is not simulated"),
        ("parallel=ep", "MoE"),
        ("parallel=zero9", "ddp, fsdp, hsdp, tp"),
        ("parallel.pipeline=2", "parallel.tensor"),
        ("parallel.shard=0", "a number of ranks"),
        ("task=inference", "only training is simulated"),
    ],
)
def test_what_is_not_simulated_is_refused_by_name(word, said):
    with pytest.raises(InputError, match=said):
        to_simulation(["topology=simulated_hgx_h100", word])


@pytest.mark.parametrize(
    "words",
    [
        ["topology=simulated_no_such_machine"],
        ["topology=simulated_local"],
        ["topology=simulated_pcie_node", "world_sizes=[2]"],
        ["topology=simulated_hgx_h100", "world_sizes=[99999]"],
        ["topology=simulated_hgx_h100", "--cfg", "job"],
    ],
)
def test_the_command_refuses_it_in_one_line(words, capsys):
    refused(capsys, ["run", *words])
