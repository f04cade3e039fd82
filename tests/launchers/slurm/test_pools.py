"""Which nodes each allocation of a run leaves to the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaling.config.compose import requests
from scaling.errors import InputError
from scaling.launchers.slurm.submit import excluded, nodes_of, one_allocation, shares

SINFO = "a1 idle gpu*\na2 alloc gpu*\na3 drain gpu*\na4 down* gpu*\nb1 mix big\na1 idle big\n"


@pytest.fixture
def asked():
    """asked(*overrides): the request of a run on one node."""

    def request(*overrides: str):
        return requests("submit", ["topology=pcie_node", "model=synthetic", *overrides]).items[0]

    return request


@pytest.fixture
def sinfo(tmp_path, monkeypatch):
    """What sinfo and `scontrol show hostnames` print."""
    for name, line in (("sinfo", f"printf '{SINFO}'"), ("scontrol", "echo a2")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_nodes_that_get_no_jobs_are_marked():
    assert nodes_of(SINFO, default=True) == {"a1": True, "a2": True, "a3": False, "a4": False}
    assert nodes_of(SINFO, default=False)["b1"]


@pytest.mark.parametrize(("nodes", "allocations", "hosts"), [(2, 2, 1), (7, 3, 2), (64, 5, 12), (9, 9, 1)])
def test_shares_have_no_node_in_common_and_leave_none_out(nodes, allocations, hosts):
    names = [f"n{k}" for k in range(nodes)]
    found = shares(names, allocations, hosts, "gpu")
    assert [name for share in found for name in share] == names
    assert len(found) == allocations
    assert min(map(len, found)) >= hosts


@pytest.mark.parametrize(
    ("nodes", "would"), [(5, "partition gpu has 5 that get jobs; at most 2 of them"), (1, "`sinfo` lists")]
)
def test_too_few_nodes_are_refused_with_what_would_do(nodes, would):
    with pytest.raises(InputError, match=r"cluster\.allocations=3: 3 x 2 nodes are needed") as refused:
        shares([f"n{k}" for k in range(nodes)], 3, 2, "gpu")
    assert would in str(refused.value)


def test_one_allocation_asks_slurm_nothing(asked, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert excluded(asked().spec) == [""]


@pytest.mark.usefixtures("sinfo")
def test_each_excludes_the_others_nodes_and_those_that_may_come_back(asked):
    request = asked("cluster.allocations=2")
    spec = replace(request.spec, cluster=replace(request.spec.cluster, partition=None))
    assert excluded(spec) == ["a[2-4]", "a[1,3-4]"]
    assert one_allocation(request).spec.cluster.allocations == 1


@pytest.mark.usefixtures("sinfo")
def test_what_the_user_excludes_is_nobodys(asked):
    with pytest.raises(InputError, match="3 that get jobs; at most 3 of them"):
        excluded(asked("cluster.allocations=4").spec)
    with pytest.raises(InputError, match="2 that get jobs; at most 2 of them"):
        excluded(asked("cluster.allocations=4", "+cluster.sbatch.exclude=a2").spec)
    assert excluded(asked("cluster.allocations=2", "+cluster.sbatch.exclude=a2").spec)[0] == "a[2-4],b1"


def test_nodes_that_the_user_names_are_not_dealt_out(asked):
    with pytest.raises(InputError, match=r"leave cluster\.sbatch\.nodelist out"):
        excluded(asked("cluster.allocations=2", "+cluster.sbatch.nodelist=a1").spec)
