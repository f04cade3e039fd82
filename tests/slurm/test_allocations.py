"""Several allocations of each partition, one of whose nodes is slow."""

import json

import pytest

SLOW_BIT_S = "40mbit"


@pytest.mark.slow
def test_a_slow_node_is_not_taken_for_a_slow_partition(login):
    """Within a node both partitions are equal, but for one node whose loopback was slowed down."""
    node = login.slurm.processes("-N\0pcie2\0")[0]
    inside = ("nsenter", f"--target={node}", "--net", "tc", "qdisc")
    shape = (*inside, "add", "dev", "lo", "root", "tbf", "rate", SLOW_BIT_S, "burst", "256k", "latency", "1s")
    assert login.outside(*shape).returncode == 0
    try:
        done = login.scaling(
            *("submit", "-m", "topology=slurm_pcie,slurm_nvlink", "topology.hosts=1"),
            *("topology.ranks_per_host=2", "world_sizes=[1,2]", "model=synthetic", "model.param_mb=2"),
            *("model.compute_ms=15", "measure=quick", "measure.budget_s=4", "tracking=disabled"),
            *("cluster.allocations=2", "run_dir=both", "--wait"),
            timeout=400,
        )
    finally:
        login.outside(*inside, "del", "dev", "lo", "root")
    assert done.returncode == 0, done.stderr
    document = json.loads((login.home / "both/comparison.json").read_text())
    (comparison,) = document["comparisons"]
    nodes = {role: [one["nodes"] for one in comparison["allocations"][role]] for role in ("base", "other")}
    assert nodes == {"base": [["pcie1"], ["pcie2"]], "other": [["nvlink1"], ["nvlink2"]]}
    (point,) = (p for p in comparison["points"] if p["world_size"] == 2)
    fast, slow = (rate["value"] for rate in point["allocations"]["base"])
    assert fast > 3 * slow
    first, second = (rate["value"] for rate in point["allocations"]["other"])
    assert first == pytest.approx(second, rel=0.5)
    assert not point["distinguishable"]
    said = " ".join(done.stdout.split())
    assert "The interval contains how far nodes differ: 2 allocations of each" in said
    assert "slowest pcie2" in said
