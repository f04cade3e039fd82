"""Limits, placement and flags of this process, and of a made-up machine."""

import os

from scaling.worker.accelerator.accelerator import Cpu
from scaling.worker.session.environment import facts, numbers, ranges


def write(root, path, text):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_this_process():
    found = facts(Cpu())
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["memory_bytes"] > 2**28
    assert found["flags.cudnn_tf32"] in (True, False)


def test_a_quota_of_cores_and_memory_is_found_on_the_way_up(tmp_path):
    write(tmp_path, "proc/self/cgroup", "0::/job/step\n")
    write(tmp_path, "sys/fs/cgroup/job/cpu.max", "250000 100000\n")
    write(tmp_path, "sys/fs/cgroup/job/step/cpu.max", "max 100000\n")
    write(tmp_path, "sys/fs/cgroup/job/memory.max", f"{2**30}\n")
    found = facts(Cpu(), tmp_path)
    assert (found["cgroup_cores"], found["cgroup_memory_bytes"]) == (2.5, 2**30)


def test_version_1_of_the_same(tmp_path):
    write(tmp_path, "proc/self/cgroup", "3:cpu:/job\n2:memory:/job\n")
    write(tmp_path, "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "150000\n")
    write(tmp_path, "sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n")
    write(tmp_path, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n")
    found = facts(Cpu(), tmp_path)
    assert (found["cgroup_cores"], found["cgroup_memory_bytes"]) == (1.5, None)


def test_the_driver_as_the_kernel_module_says_it(tmp_path):
    write(
        tmp_path,
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23\n",
    )
    assert facts(Cpu(), tmp_path)["driver"] == "570.86.15"


def test_secrets_are_left_out(monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("TORCH_HUB_TOKEN", "x")
    monkeypatch.setenv("WANDB_API_KEY", "x")
    found = facts(Cpu())
    assert found["env.NCCL_DEBUG"] == "WARN"
    assert not any("TOKEN" in key or "KEY" in key for key in found)


def test_lists_of_processors():
    assert numbers("0-2,5") == [0, 1, 2, 5]
    assert ranges({0, 1, 2, 5}) == "0-2,5"
