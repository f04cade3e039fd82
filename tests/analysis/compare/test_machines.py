"""What ranks ran on, equal ones together."""

from scaling.analysis.compare.differences import machines


def facts(**changes):
    usual = {"hostname": "a", "cpu": "C1", "cores": 8, "torch": "2.13.0", "device_memory_bytes": None}
    return usual | {"env.NCCL_DEBUG": "WARN", "env.CUDA_VISIBLE_DEVICES": "0"} | changes


def test_ranks_that_are_alike_stand_together():
    found = machines({0: facts(), 1: facts(hostname="b"), 2: facts(torch="2.12.0"), 3: facts()})
    assert [machine.ranks for machine in found] == [(0, 1, 3), (2,)]
    assert found[0].hosts == ("a", "b")
    assert (found[0].cores, found[0].torch, found[1].torch) == (8, "2.13.0", "2.12.0")


def test_variables_are_those_that_all_of_them_share():
    shared = {"env.NCCL_DEBUG": "INFO"}
    (alike,) = machines({0: facts(), 1: facts(**{"env.CUDA_VISIBLE_DEVICES": "1"})})
    assert alike.environment == (("NCCL_DEBUG", "WARN"),)
    (apart,) = machines({0: facts(), 1: facts(**shared)})
    assert apart.environment == ()


def test_nothing_is_known_of_nobody():
    assert machines({}) == ()
