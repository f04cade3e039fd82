"""What a rank writes down about its machine: which facts make a machine, which differ by nature, which are secret.

A fact is named as in env-<r>.json, an environment variable as `env.NAME`.
"""

from __future__ import annotations

import re

VARIABLE = "env."
"""Begins the name of a fact that is an environment variable."""

RECORDED = (
    "NCCL_",
    "GLOO_",
    "TORCH_",
    "TORCHELASTIC_",
    "OMP_",
    "MKL_",
    "KMP_",
    "GOMP_",
    "DNNL_",
    "ONEDNN_",
    "ATEN_",
    "NVIDIA_TF32",
    "UCX_",
    "CUDA_",
    "CUBLAS_",
    "PYTORCH_",
    "SLURM_",
    "SCALING_NUMA_",
)
"""Beginnings of variables that change results or speed, or name the job: env-<r>.json has them."""
NUMA_BOUND = f"{VARIABLE}SCALING_NUMA_BOUND"
"""The fact that says how a rank was bound to cores (launch/bind.sh)."""
NOT_RECORDED = ("NCCL_DEBUG_FILE",)
"""Where NCCL's log goes changes neither results nor speed, and differs in every launch."""
PRIVATE = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDINAL", "SLURM_", "TORCHELASTIC_")
"""Beginnings of variables that differ between ranks or launches by nature: a difference means nothing."""
FABRIC = ("NCCL_", "GLOO_", "TORCH_NCCL_", "TORCH_GLOO_", "UCX_", "FI_")
"""Beginnings of variables that act on communication only."""

PRIVATE_FACTS = ("host", "cpus", "numa_nodes", "device_uuid", "device_pci")
"""Facts that differ between ranks by nature."""
MACHINE = ("cpu", "cores", "device", "device_name")
"""Facts that make a machine. Hostname and software are left out, so that history survives upgrades."""
VERSIONS = ("python", "torch", "cuda", "cudnn", "nccl", "driver", "kernel")
"""Facts about the software."""

_SECRET = re.compile(
    r"((?<!_P)KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|COOKIE|JWT|AUTH)S?([_\d]|$)",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Whether a variable may hold a secret: WANDB_API_KEY, HF_TOKEN; not NCCL_IB_PKEY, TOKENIZERS_PARALLELISM."""
    return _SECRET.search(name) is not None


_CODE = re.compile(
    r"LD_|DYLD_|PYTHON|BASH|(ENV|IFS|PATH|SHELLOPTS|GCONV_PATH|GLIBC_TUNABLES)$|(\w*_)?(PLUGIN|PRELOAD|LIBRARY|PATH|CC|CXX)"
)
_FILES = re.compile(r"PLUGIN|FILE|PATH|DIR|CONF|LIB|HELPER")


def loads_code(name: str) -> bool:
    """Whether a variable names code that a process then runs: LD_PRELOAD, PYTHONPATH, NCCL_NET_PLUGIN."""
    return _CODE.match(name) is not None


def is_of_links(name: str) -> bool:
    """Whether a topology may set it: a variable of NCCL or Gloo that names no file and loads no code."""
    return name.startswith(("NCCL_", "GLOO_")) and _FILES.search(name) is None


def is_recorded(name: str) -> bool:
    """Whether env-<r>.json has this variable without being asked for it."""
    return name.startswith(RECORDED) and name not in NOT_RECORDED


def is_private(fact: str) -> bool:
    """Whether a fact differs between ranks or launches by nature."""
    return fact in PRIVATE_FACTS or (
        fact.startswith(VARIABLE) and fact.removeprefix(VARIABLE).startswith(PRIVATE)
    )
