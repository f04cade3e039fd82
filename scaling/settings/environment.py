"""What a rank writes down about its machine: which facts make a machine, which differ by nature, which are secret.

A fact is named as in env-<r>.json, an environment variable as `env.NAME`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

VARIABLE = "env."
"""Begins the name of a fact that is an environment variable."""

_LIBRARIES = (
    "NCCL_ GLOO_ TORCH_NCCL_ TORCH_GLOO_ TORCH_DISTRIBUTED_ TORCH_CUDNN_ TORCH_BLAS_ TORCH_ALLOW_TF32 TORCH_CPU_ "
    "TORCHELASTIC_ OMP_ MKL_ KMP_ GOMP_ DNNL_ ONEDNN_ ATEN_ NVIDIA_TF32 UCX_ CUDA_ CUBLAS_ PYTORCH_ SCALING_NUMA_"
)
_JOB = (
    "JOB_ID JOB_PARTITION JOB_NODELIST JOB_NUM_NODES NNODES NODEID PROCID LOCALID NTASKS TASKS_PER_NODE "
    "CPU GPU MEM_PER_ NODELIST DISTRIBUTION RESTART_COUNT CLUSTER_NAME HINT THREADS_PER_CORE TOPOLOGY_"
)
"""Variables of a Slurm job and its steps, behind SLURM_."""
RECORDED = (*_LIBRARIES.split(), *(f"SLURM_{name}" for name in _JOB.split()))
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
    r"((?<!_P)KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|CREDENTIAL|COOKIE|JWT"
    r"|AUTH(ORIZATION)?|SIGNATURE|(^|_)(PASS|PW|PWD|PAT|CRED|PIN|BEARER|SIG))S?([_\d]|$)",
    re.IGNORECASE,
)
_PASSWORD = re.compile(r"PASS[WPC]|SECRET|(?<![A-Z])(PW|PWD|PIN)(?![A-Z])", re.IGNORECASE)
"""In names whose value is secret in digits too. For other names of secrets digits are a count, as of tokens or keys."""
_SECRET_VALUE = re.compile(
    r"://[^/\s@]*:[^/\s@]+@|-----BEGIN |\beyJ[\w-]+\.[\w-]+\.|\b(Bearer|Basic) +[\w.+/=-]{8}"
    r"|(^|[\s=:,'\"])(sk-|[rs]k_live_|gh[opsur]_|github_pat_|glpat-|hf_|xox[abprs]-|AKIA|ASIA|AIza|npm_|pypi-)[\w-]{8}"
    r"|[/@(](gh[opsur]_|github_pat_|glpat-|hf_|AKIA)[A-Za-z0-9]{16}|//hooks\.slack\.com/services/\w"
)
_PAIR = re.compile(r"([A-Za-z_][\w-]*)['\"]?\s*[:=]\s*['\"]?(?=[^\s'\"])(\d[\d.]*(?=[\s,;&)\]}'\"]|$))?")
"""A name and its value within a word, as in JSON or a query; the value only where it is digits."""
LEFT_OUT = "(left out)"


def is_secret(name: str) -> bool:
    """Whether a variable may hold a secret: WANDB_API_KEY, HF_TOKEN; not NCCL_IB_PKEY, TOKENIZERS_PARALLELISM."""
    return _SECRET.search(name) is not None


def is_secret_value(value: str) -> bool:
    """Whether a text has what looks like a credential: an address with a password, a token, `"api_key": "X"`."""
    pairs = any(is_secret(name) and not _is_count(name, given) for name, given in _PAIR.findall(value))
    return pairs or _SECRET_VALUE.search(value) is not None


def _is_count(name: str, value: str) -> bool:
    return re.fullmatch(r"\d[\d.]*", value) is not None and _PASSWORD.search(name) is None


def without_secrets(words: Sequence[str]) -> tuple[str, ...]:
    """A command's words: LEFT_OUT in place of what an option or key with a secret's name is given (`--api-key X`)."""
    shown: list[str] = []
    hides = ""
    for word in words:
        name, equals, value = word.partition("=")
        # The words of an option's or a key's last part stand together in one of three ways.
        last = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.rpartition(".")[2].lstrip("-+"))
        secret = is_secret(last.replace("-", "_"))
        if hides and not word.startswith("-"):
            shown.append(word if _is_count(hides, word) else LEFT_OUT)
        elif equals and (secret or is_secret_value(value)) and not _is_count(name, value):
            shown.append(f"{name}={LEFT_OUT}")
        else:
            shown.append(LEFT_OUT if is_secret_value(word) else word)
        hides = name if secret and not equals else ""
    return tuple(shown)


_FILES = re.compile(r"PLUGIN|FILE|PATH|DIR|HOME|CONFIG|LIB|HELPER|LOGDEST|_TLS_")
"""In names of variables that name a file, a folder or code."""
_OF_A_JOB = ("SLURM_", "SCALING_", "TORCHELASTIC_")


def is_of_links(name: str) -> bool:
    """Whether a topology may set it: a variable of NCCL or Gloo that names no file and loads no code."""
    return name.startswith(("NCCL_", "GLOO_")) and _FILES.search(name) is None


def is_of_machine(name: str) -> bool:
    """Whether a cluster may set it: a variable of a library that measuring needs, which names no file and no code."""
    ours = name.startswith((*RECORDED, *FABRIC)) and not name.startswith(_OF_A_JOB)
    return ours and _FILES.search(name) is None


def is_recorded(name: str) -> bool:
    """Whether env-<r>.json has this variable without being asked for it."""
    return name.startswith(RECORDED) and name not in NOT_RECORDED


def is_private(fact: str) -> bool:
    """Whether a fact differs between ranks or launches by nature."""
    variable = fact.startswith(VARIABLE) and fact.removeprefix(VARIABLE).startswith(PRIVATE)
    return variable or fact in PRIVATE_FACTS
