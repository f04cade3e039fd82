"""A node with one fault each: named, on the right rank, with a remedy; a healthy one has none."""

import dataclasses

import pytest

from scaling.analysis.results.doctor import ERROR, WARNING
from scaling.records.checkup import Pair


def only(found):
    assert len(found.problems) == 1, [p.what for p in found.problems]
    problem = found.problems[0]
    assert problem.remedy
    return problem


def test_a_healthy_node_has_no_problem(node):
    found = node.examine()
    assert found.problems == ()
    assert found.exit_code == 0
    assert [r.rank for r in found.ranks] == [0, 1, 2, 3]


def test_a_known_machine_is_told_what_others_reach_there(node):
    assert node.examine().others == ()
    node.change(facts={"device_name": "NVIDIA GB200", "device": "cuda"})
    (text,) = node.examine().others
    assert text.startswith("others reach 679.6 GB/s in all_reduce on 4 x GB200 (Azure")
    node.change(1, facts={"device_uuid": "0000-0000"})
    assert node.examine().others == ()  # two ranks on one GPU are no machine of four


def test_a_link_at_rest_may_save_power(node):
    node.nvml.gpus[2].generation, node.nvml.gpus[2].utilisation = 1, 0
    assert node.examine().problems == ()


def test_one_rank_with_another_driver(node):
    node.change(1, facts={"driver": "535.54.03"})
    problem = only(node.examine())
    assert problem.what == "driver differs: 570.86.15 on ranks 0 and 2-3, 535.54.03 on rank 1"
    assert (problem.rank, problem.severity) == (1, ERROR)
    assert "same driver" in problem.remedy


def test_a_power_cap_is_how_devices_work(node):
    for gpu in node.nvml.gpus:
        gpu.reasons = 0x4
    assert node.examine().problems == ()


def test_links_that_are_down_on_every_rank_are_not_wired(node):
    for gpu in node.nvml.gpus:
        gpu.links = [True, True, False, False]
    assert node.examine().problems == ()


def test_a_swapped_numa_binding(node):
    node.change(0, facts={"numa_nodes": "1"})
    problem = only(node.examine())
    assert "bound to the processors of NUMA node 1, its device is on node 0" in problem.what
    assert (problem.rank, problem.severity) == (0, ERROR)
    assert "--cpunodebind=0" in problem.remedy


def test_a_rank_that_may_use_every_node_is_not_bound_wrongly(node):
    node.change(0, facts={"numa_nodes": "0-1"})
    found = node.examine()
    assert found.problems == ()
    assert found.differences == ()  # placement is each rank's own


def test_all_of_it_on_one_node(node):
    node.nvml.gpus[2].width = 8
    node.nvml.gpus[3].reasons = 0x40
    node.nvml.gpus[1].links[2] = False
    node.change(0, facts={"numa_nodes": "1"})
    node.change(1, facts={"driver": "535.54.03"})
    found = node.examine()
    assert sorted(p.rank for p in found.problems) == [0, 1, 1, 2, 3]
    assert found.exit_code == 1


THROTTLED = "throttled (hw_slowdown) in 100% of the samples under load at 1100 of 1980 MHz"


@pytest.mark.parametrize(
    ("gpu", "change", "said", "severity", "remedy"),
    [
        (0, {"persistence": 0}, "persistence mode is off", WARNING, ""),
        (0, {"mig": [1, 1]}, "MIG mode is on", WARNING, ""),
        (0, {"ecc": [1, 0]}, "waits for a reboot", WARNING, ""),
        (0, {"power_limit": 400_000}, "power limit is 400 W of 700 W", WARNING, ""),
        (0, {"sm_application_mhz": 900}, "application clocks hold it to 900 MHz of 1980 MHz", WARNING, ""),
        (0, {"ecc_uncorrected": 3}, "3 uncorrected ECC errors", ERROR, ""),
        (0, {"processes": 2}, "2 processes use it at once", WARNING, ""),
        (0, {"generation": 3}, "gen 3 of gen 5", WARNING, ""),
        (2, {"width": 8}, "PCIe link runs at x8 of x16 under load", ERROR, "reseat"),
        (3, {"reasons": 0x8 | 0x40, "sm_mhz": 1100}, THROTTLED, ERROR, ""),
        (1, {"links": [True, True, False, True]}, "3 of 4 NVLinks are up (down: 2)", ERROR, ""),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_the_state_of_a_device(node, gpu, change, said, severity, remedy):
    for name, value in change.items():
        setattr(node.nvml.gpus[gpu], name, value)
    problem = only(node.examine())
    assert said in problem.what
    assert (problem.rank, problem.severity) == (gpu, severity)
    assert remedy in problem.remedy


def test_application_clocks_that_are_the_cards_own_hold_nothing(node):
    """A T4 comes with 585 MHz and runs at up to 1590."""
    gpu = node.nvml.gpus[0]
    gpu.sm_application_mhz, gpu.sm_application_default_mhz, gpu.sm_max_mhz = 585, 585, 1590
    assert node.examine().problems == ()


def test_a_device_that_fell_off_the_bus_is_named_and_the_others_are_looked_at(node):
    node.nvml.gpus[2].lacks.add("HandleByIndex")
    node.nvml.gpus[3].width = 8
    lost, narrow = node.examine().problems
    assert lost.what == "GPU 2: NVML lists it and cannot open it (GPU is lost)"
    assert "Xid" in lost.remedy
    assert lost.severity == ERROR
    assert narrow.what.startswith("GPU 3: its PCIe link runs at x8")
    assert narrow.rank == 3


def test_an_xid(node):
    node.nvml.xids = [(1, 79)]
    problem = only(node.examine())
    assert "Xid 79" in problem.what
    assert (problem.rank, problem.severity) == (1, ERROR)


def test_what_every_rank_has_alike_is_said_once(node):
    node.change(facts={"shared_memory_bytes": 2**26})
    problem = only(node.examine())
    assert problem.rank is None
    assert "64 MiB of shared memory" in problem.what
    assert "--shm-size" in problem.remedy


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"limit.open_files": 1024}, "1024 open files"),
        ({"cgroup_cores": 1.5}, "1.5 cores for 4 threads"),
        ({"flags.cudnn_tf32": True}, "flags.cudnn_tf32 differs"),
        ({"env.NCCL_DEBUG": "INFO", "env.NCCL_DEBUG_SUBSYS": "INIT,TUNING"}, "writes while it measures"),
        ({"env.NCCL_DEBUG": "INFO", "env.NCCL_DEBUG_SUBSYS": "^INIT"}, "writes while it measures"),
        ({"env.CUDA_LAUNCH_BLOCKING": "1"}, "every launch wait"),
        ({"env.NCCL_P2P_DISABLE": "1"}, "through host memory"),
    ],
)
def test_limits_and_environment(node, facts, said):
    node.change(2, facts=facts)
    problems = [p for p in node.examine().problems if said in p.what]
    assert [p.rank for p in problems] == [2]


def test_what_nccl_says_when_it_begins_disturbs_nothing(node):
    for subsystems in (None, "INIT", "INIT,NET"):
        node.change(facts={"env.NCCL_DEBUG": "INFO", "env.NCCL_DEBUG_SUBSYS": subsystems})
        assert node.examine().problems == ()


def test_locked_memory_matters_where_there_is_infiniband(node):
    node.change(0, facts={"limit.locked_memory_bytes": 2**23})
    assert not any("locked" in p.what for p in node.examine().problems)
    near = ["pci0000:00", "0000:01:00.0", "0000:aa:00.0"]
    far = ["pci0000:10", "0000:01:00.0", "0000:ab:00.0"]
    node.nics = tuple(
        {"name": n, "kind": "infiniband", "pci": p} for n, p in (("mlx5_0", near), ("mlx5_1", far))
    )
    assert "locked memory" in only(node.examine()).what


def test_a_card_on_the_other_socket(node):
    card = {"name": "mlx5_0", "kind": "infiniband", "pci": ["pci0000:00", "0000:01:00.0", "0000:aa:00.0"]}
    node.nics = (card,)
    # A socket has several root buses: without its NUMA node, nothing says on which socket the card is.
    assert node.examine().problems == ()
    node.nics = ({**card, "numa_node": 0},)
    problems = node.examine().problems
    assert {p.rank for p in problems} == {2, 3}
    assert all("another NUMA node (SYS)" in p.what for p in problems)


def test_acs_in_the_bridges(node):
    node.acs = 6
    assert "ACS is on in 6 PCI bridges" in only(node.examine()).what


def test_a_slow_pair_is_laid_to_the_rank_that_all_slow_pairs_share(node):
    slow = {(0, 3), (1, 3), (2, 3)}
    for check in list(node.checks):
        pairs = tuple(
            dataclasses.replace(p, duration_ns=p.duration_ns * 4)
            if (min(check.rank, p.peer), max(check.rank, p.peer)) in slow
            else p
            for p in check.pairs
        )
        node.change(check.rank, pairs=pairs)
    problem = only(node.examine())
    assert problem.rank == 3
    assert "to ranks 0, 1, 2" in problem.what


def test_a_pair_is_as_fast_as_its_quicker_end_saw_it(node):
    node.change(0, pairs=(Pair(peer=1, bytes=2**26, duration_ns=9_000_000),))
    pair = next(p for p in node.examine().pairs if (p.first, p.second) == (0, 1))
    assert pair.bandwidth_gbit_s.value == pytest.approx(8 * 2**26 / 2e6)


def test_clocks_that_are_apart(node):
    node.change(3, clock_offset_ns=-400_000_000, clock_bound_ns=100_000)
    problem = only(node.examine())
    assert "-400 ms" in problem.what
    assert "chrony" in problem.remedy


def test_a_rank_that_did_not_finish(node):
    node.change(2, stage="ceilings")
    found = node.examine(error="RuntimeError: CUDA error: device fell off the bus")
    assert {p.what for p in found.problems} >= {
        "came as far as ceilings",
        "RuntimeError: CUDA error: device fell off the bus",
    }
    assert found.exit_code == 1
