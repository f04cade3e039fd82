"""All meshes of a small world, ranked from simulations of the real program."""

import json

import pytest

from scaling.cli.main import main

pytestmark = pytest.mark.slow
SMALL = ("model.layers=2", "model.width=128", "model.heads=4", "model.sequence=64", "model.vocabulary=512")
ASKED = ("run", "topology=simulated_hgx_h100", "model=gpt2", *SMALL, "batch_per_rank=2", "--json")


def asked(capsys, *words):
    assert main([*ASKED, *words]) in (0, 1)
    return json.loads(capsys.readouterr().out)


def test_meshes_are_ranked_by_samples_with_memory_and_the_reason(capsys):
    found = asked(capsys, "parallel=auto", "world_sizes=[2]")
    assert found["simulated"] is True
    meshes = {(m["replicate"], m["shard"], m["tensor"]): m for m in found["ranked"]}
    assert set(meshes) == {(2, 1, 1), (1, 2, 1), (1, 1, 2)}
    rates = [m["samples_per_s"]["value"] for m in found["ranked"]]
    assert rates == sorted(rates, reverse=True)
    assert found["ranked"][0]["slower_by"] is None
    assert all(m["peak_bytes"] > 0 for m in found["ranked"])
    alone = asked(capsys, "parallel=tp", "world_sizes=[2]")["points"][-1]
    assert meshes[1, 1, 2]["step_ms"] == alone["step_ms"]


def test_meshes_that_do_not_fit_are_left_out(capsys):
    found = asked(capsys, "parallel=auto", "world_sizes=[2]", "memory_limit=2MB")
    assert found["ranked"] == []
    assert {one["why"] for one in found["left_out"]} == {"does not fit into memory"}
