"""What CUDA devices alone have: TF32, compute capability, access to peers, NCCL's version. ROCm has its names."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch

from scaling.errors import let_go
from scaling.reading import system_text

TYPE = "cuda"


def formats(device: torch.device) -> tuple[str, ...]:
    """Before compute capability 8.0, bf16 is emulated and TF32 is silently fp32, so neither is listed."""
    ampere = torch.cuda.get_device_capability(device) >= (8, 0)
    return ("fp64", "fp32", "tf32", "bf16", "fp16") if ampere else ("fp64", "fp32", "fp16")


def peer_access(mine: int, local_rank: int) -> bool | None:
    """Whether device `mine` can access the memory of a local rank's device; None where they are the same."""
    other = local_rank % torch.cuda.device_count()
    return None if other == mine else torch.cuda.can_device_access_peer(mine, other)


def facts(device: torch.device) -> dict[str, Any]:
    """Versions, name, memory and compute capability."""
    properties = torch.cuda.get_device_properties(device)
    return {
        "cuda": torch.version.cuda,
        "nccl": nccl_text() if torch.distributed.is_nccl_available() else None,
        "device_name": properties.name,
        "device_memory_bytes": properties.total_memory,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "device_uuid": str(properties.uuid),
        "device_pci": _pci_address(properties),
    }


def nccl_text() -> str:
    """The version of NCCL that runs, and the one that torch was built with where that is another."""
    built = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    running = ".".join(map(str, nccl_version()))
    return running if running == built else f"{running}, torch was built with {built}"


def nccl_version() -> tuple[int, ...]:
    """(major, minor, patch) of the NCCL that runs: the loaded library's, else the one that torch was built with."""
    return loaded_nccl() or tuple(torch.cuda.nccl.version())  # type: ignore[no-untyped-call]


def loaded_nccl() -> tuple[int, ...] | None:
    """(major, minor, patch) as the loaded library says; None where none is loaded as a library of its own.

    torch calls the first library that has NCCL's symbols. A preloaded one comes before torch's own.
    """
    for path in (None, *_mapped_nccl()):
        with let_go(OSError, AttributeError):
            code = ctypes.c_int(0)
            if ctypes.CDLL(path).ncclGetVersion(ctypes.byref(code)) == 0:
                return nccl_numbers(code.value)
    return None


def nccl_numbers(code: int) -> tuple[int, int, int]:
    """(major, minor, patch) of NCCL_VERSION_CODE: from 2.9 on the major version counts 10,000, before it 1,000."""
    major, rest = divmod(code, 10_000 if code >= 10_000 else 1_000)
    return major, rest // 100, rest % 100


def _mapped_nccl() -> list[str]:
    """Files of NCCL that are mapped into this process."""
    lines = (system_text(Path("/proc/self/maps")) or "").splitlines()
    paths = (line.split(maxsplit=5)[5] for line in lines if "/" in line)
    return list(dict.fromkeys(path for path in paths if Path(path).name.startswith("libnccl.so")))


def _pci_address(properties: Any) -> str | None:
    """domain:bus:device.function as in sysfs; None if torch is too old to tell."""
    try:
        place = (properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id)
    except AttributeError:
        return None
    return "{:04x}:{:02x}:{:02x}.0".format(*place)


def matmul_tf32() -> bool:
    """Whether CUDA computes fp32 matrix products in TF32, whichever of torch's switches was set.

    The newer one tells. If it was set, torch raises RuntimeError when the old one, `allow_tf32`, is read.
    """
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


def cudnn_tf32() -> bool:
    """Whether cuDNN computes fp32 convolutions in TF32; recurrent layers have another setting."""
    return bool(torch.backends.cudnn.conv.fp32_precision == "tf32")  # type: ignore[attr-defined]


def set_tf32(allowed: bool) -> None:
    """Set both switches: torch's default is on for convolutions and off for matrix products."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
