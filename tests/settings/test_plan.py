"""What a plan says of how long its ranks take to start."""

from support.commands import planned

from scaling.cli.verbs.plan import describe
from scaling.records.paths import RunFolder


def described(hosts):
    """The plan of 8 ranks on each of some hosts, in words."""
    asked = ["topology=nvlink_node", "topology.ranks_per_host=8", f"topology.hosts={hosts}"]
    return describe(planned(*asked, f"world_sizes=[1,8,{8 * hosts}]"), RunFolder("r"))


def test_a_plan_of_many_ranks_says_that_their_start_is_extrapolated():
    few, many = described(64), described(512)
    assert "what 512 ranks on 64 hosts take to join, 1.2 to 1.8 s" in few
    assert "extrapolated" not in few
    assert "that is extrapolated: joining was measured up to 512 ranks" in many
