"""Names of variables whose values are nobody's business."""

from __future__ import annotations

import re

_SECRET = re.compile(
    r"((?<!_P)KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|COOKIE|JWT|AUTH)S?([_\d]|$)",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Whether a variable smells of a secret: WANDB_API_KEY, HF_TOKEN; not NCCL_IB_PKEY, TOKENIZERS_PARALLELISM."""
    return _SECRET.search(name) is not None
