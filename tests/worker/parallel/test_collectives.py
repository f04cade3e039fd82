"""Collectives made of messages on the host's back end: what they compute, what a tap notes, how long they take."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.gloo_ranks import PATHS, ROOT, run_ranks
from support.processes import NO_NAMESPACES, user_namespaces

pytestmark = pytest.mark.slow  # real ranks

SCRIPT = Path(__file__).with_name("collective_ranks.py")
PART = 3_000 * 4
"""Bytes of a rank's part."""
RATE_BIT_S, SIZE = 200_000_000, 2**21
LONGER = 1.25
"""What a busy machine may add to the shortest of a few; one direction after the other takes twice as long."""


@pytest.fixture(
    scope="module", params=[(2, "2"), (4, "4"), (4, "2"), (4, "ring")], ids=lambda p: f"{p[1]} of {p[0]}"
)
def ranks(request, tmp_path_factory):
    world, size = request.param
    found = run_ranks(SCRIPT, world, tmp_path_factory.mktemp("ranks") / "store", world)
    return [one[size] for one in found]


def test_every_rank_has_every_part(ranks):
    assert all(one["gathered"] == [True] * 4 for one in ranks)


def test_every_rank_has_its_part_of_the_sum_and_of_the_mean(ranks):
    assert all(one["reduced"] == [True] * 2 for one in ranks)


def test_several_are_on_their_way_at_once_and_other_messages_between_them(ranks):
    assert all(one["at_once"] for one in ranks)


def test_a_tap_notes_one_row_for_each_with_the_bytes_of_nccl_tests(ranks):
    n = max(one["place"] for one in ranks) + 1
    for one in ranks:
        assert [(row["kind"], row["bytes"]) for row in one["rows"]] == [
            ("all_gather", n * PART),
            ("reduce_scatter", n * PART),
            ("all_gather", n * PART),
        ]
        assert [row["waited"] for row in one["rows"]] == [True, True, False]
        assert all(row["stamps"] and row["work"] for row in one["rows"])
        assert one["left"] == 0


@pytest.mark.skipif(not user_namespaces(), reason=NO_NAMESPACES)
@pytest.mark.parametrize("world", [2, 4])
def test_a_link_carries_both_directions_at_once_and_one_collective_after_the_other(world, tmp_path):
    command = [sys.executable, str(SCRIPT)]
    hosts = [
        {
            "name": f"host{rank}",
            "address": f"10.77.0.{rank + 1}",
            "rate_bit_s": RATE_BIT_S,
            "command": [*command, str(rank), str(tmp_path / "store"), str(world), str(SIZE)],
            "env": {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1", "PYTHONPATH": PATHS},
            "log": str(tmp_path / f"{rank}.txt"),
        }
        for rank in range(world)
    ]
    network = tmp_path / "network.json"
    network.write_text(json.dumps({"hosts": hosts, "grace_s": 5, "caller_pid": os.getpid()}))
    unshare = ["unshare", "--user", "--map-root-user", "--net", "--mount", sys.executable]
    done = subprocess.run(
        [*unshare, str(ROOT / "launch" / "emulated_hosts.py"), str(network)], check=False, timeout=120
    )
    assert done.returncode == 0, (tmp_path / "0.txt").read_text()
    took = json.loads((tmp_path / "0.txt").read_text().splitlines()[-1])
    link_s = SIZE * (world - 1) / world * 8 / (RATE_BIT_S * 1448 / 1514)
    assert all(0.8 * link_s < seconds < LONGER * link_s for seconds in took.values()), (took, link_s)
