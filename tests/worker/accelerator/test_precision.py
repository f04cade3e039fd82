"""What each precision switches on.

The version of NCCL is the loaded library's, not the one that torch was built with.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from support.commands import environment
from support.processes import captured

from scaling.worker.accelerator.accelerator import Cpu, Precision
from scaling.worker.accelerator.cuda import cudnn_tf32, matmul_tf32, nccl_numbers
from scaling.worker.checks import ceilings
from scaling.worker.probe.loop_file import _tf32
from scaling.worker.session.environment import facts


@pytest.fixture(autouse=True)
def keep_flags():
    """The old switches set the new ones too, so that both say the same again."""
    flags = matmul_tf32(), cudnn_tf32()
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = flags


@pytest.mark.parametrize(("name", "on"), [("fp32", False), ("tf32", True), ("bf16", False), ("fp16", False)])
def test_tf32_is_said_either_way(name, on):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not on
    Precision(name, "cpu")
    assert torch.backends.cuda.matmul.allow_tf32 is on
    assert torch.backends.cudnn.allow_tf32 is on


@pytest.fixture
def new_switches():
    """Sets torch's newer switches of matrix products and convolutions."""
    matmul, convolution = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    kept = matmul.fp32_precision, convolution.fp32_precision

    def turn(to):
        matmul.fp32_precision = convolution.fp32_precision = to

    yield turn
    matmul.fp32_precision, convolution.fp32_precision = kept


@pytest.mark.parametrize("on", [True, False])
def test_tf32_is_known_whichever_switch_was_set(new_switches, on):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = on
    assert (matmul_tf32(), cudnn_tf32()) == (on, on)
    new_switches("ieee" if on else "tf32")
    with pytest.raises(RuntimeError, match="mix of the legacy and new"):
        _ = torch.backends.cuda.matmul.allow_tf32
    assert (matmul_tf32(), cudnn_tf32()) == (not on, not on)


def test_what_is_written_down_follows_the_newer_switches(new_switches):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    new_switches("tf32")
    found = facts(Cpu())
    assert (found["flags.cuda_matmul_tf32"], found["flags.cudnn_tf32"]) == (True, True)
    assert (_tf32("fp32", "cuda"), _tf32("bf16", "cuda"), _tf32("fp32", "cpu")) == ("tf32", "bf16", "fp32")


def test_a_ceiling_is_measured_whichever_switch_was_set(new_switches, monkeypatch):
    monkeypatch.setattr(ceilings, "_SIDES", {"cpu": (16,)})
    monkeypatch.setattr(ceilings, "LOAD_NS", 10_000_000)
    monkeypatch.setattr(ceilings, "RAMP_NS", 0)
    torch.backends.cuda.matmul.allow_tf32 = False
    new_switches("tf32")
    assert all(found.best > 0 for found in ceilings._computing(Cpu(), "fp32", ceilings.KINDS))
    assert matmul_tf32()


@pytest.mark.parametrize(
    ("name", "dtype"), [("fp32", torch.float32), ("tf32", torch.float32), ("bf16", torch.bfloat16)]
)
def test_autocast_decides_what_a_matrix_product_gives(name, dtype):
    with Precision(name, "cpu").autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


def test_fp16_scales_and_the_others_do_not():
    loss = torch.ones((), requires_grad=True) * 2
    assert Precision("fp32", "cpu").scaler().scale(loss) is loss
    scaler = Precision("fp16", "cpu").scaler()
    assert scaler.scale(loss) > 1000 * loss


def test_fp16_skips_a_step_that_overflowed_and_goes_on_with_less():
    weight = torch.nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = Precision("fp16", "cpu").scaler()
    scaler.scale(weight * float("inf")).backward()
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    assert weight == 1
    assert scaler.get_scale() < before


def test_each_loop_has_a_scaler_of_its_own():
    precision = Precision("fp16", "cpu")
    assert precision.scaler() is not precision.scaler()


NEWER, OLDER = 23007, 22809
"""NCCL_VERSION_CODE of 2.30.7 and 2.28.9."""
ASK = """
import sys
from types import SimpleNamespace
import torch
from scaling.settings.topology import Topology
from scaling.worker.accelerator import cuda, devices
torch.cuda.device_count = lambda: 1
torch.cuda.nccl.version = lambda: (2, 28, 9)
devices.TorchAccelerator = lambda _type, index: index
for path in sys.argv[1:]:
    import ctypes
    ctypes.CDLL(path)
topology = Topology(name="local", kind="local", ranks_per_host=2, device="cuda", backend="nccl")
spec = SimpleNamespace(topology=topology, launcher="local", env={"NCCL_MULTI_RANK_GPU_ENABLE": "1"})
print(cuda.nccl_text())
try:
    print("device", devices.open_device(spec, rank=1, local_rank=1))
except RuntimeError as error:
    print(error)
"""


def answers(*loaded: Path, preload: Path | None = None) -> list[str]:
    env = environment({"LD_PRELOAD": str(preload)} if preload else {})
    done = captured([sys.executable, "-c", ASK, *map(str, loaded)], env=env, check=True)
    return done.stdout.splitlines()


def test_a_preloaded_nccl_is_the_one_that_runs(nccl_library):
    assert answers(preload=nccl_library(NEWER)) == ["2.30.7, torch was built with 2.28.9", "device 0"]


BRINGS_NCCL = pytest.mark.skipif(torch.version.cuda is not None, reason="this torch loads an NCCL of its own")


@BRINGS_NCCL
def test_nccl_that_torch_loaded_is_asked_by_its_file(nccl_library):
    said, gate = answers(nccl_library(OLDER))
    assert said == "2.28.9"
    assert "before 2.30, and this is 2.28.9" in gate


def test_a_preloaded_nccl_comes_before_the_one_of_torch(nccl_library):
    assert (
        answers(nccl_library(OLDER), preload=nccl_library(NEWER))[0] == "2.30.7, torch was built with 2.28.9"
    )


@BRINGS_NCCL
def test_without_a_library_of_its_own_the_build_says_which_nccl_runs():
    said, gate = answers()
    assert said == "2.28.9"
    assert "this is 2.28.9" in gate


def test_version_codes_before_and_since_2_9():
    assert [nccl_numbers(code) for code in (2708, 20903, NEWER)] == [(2, 7, 8), (2, 9, 3), (2, 30, 7)]
