"""Facts that are not the same on all ranks, and which of them matter."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scaling.analysis.results.doctor import ERROR, WARNING, Difference, Differing, Problem
from scaling.settings.environment import VARIABLE, is_private
from scaling.units import spans

_MUST_AGREE = {
    "driver": "install the same driver on every host",
    "cuda": "install the same torch build on every host",
    "cudnn": "install the same torch build on every host",
    "nccl": "install the same torch build, or preload the same libnccl, on every host: different NCCLs may hang",
    "torch": "install the same torch on every host",
    "python": "use the same Python on every host",
    "device_name": "group equal devices into one partition, or give the slower ones less work",
    "compute_capability": "group equal devices into one partition",
    "device_memory_bytes": "the smallest device limits the batch: group equal ones",
    "cpu": "group equal hosts into one partition",
    "flags.cuda_matmul_tf32": "set torch.backends.cuda.matmul.allow_tf32 alike on every rank",
    "flags.cudnn_tf32": "set torch.backends.cudnn.allow_tf32 alike on every rank",
    "flags.cudnn_benchmark": "set torch.backends.cudnn.benchmark alike on every rank",
    "flags.cudnn_deterministic": "set torch.backends.cudnn.deterministic alike on every rank",
    "flags.cudnn_enabled": "set torch.backends.cudnn.enabled alike on every rank",
    "flags.float32_matmul_precision": "call torch.set_float32_matmul_precision alike on every rank",
    "flags.deterministic_algorithms": "call torch.use_deterministic_algorithms alike on every rank",
    "flags.fp16_reduced_precision_reduction": "set the reduced precision reduction flags alike on every rank",
    "flags.bf16_reduced_precision_reduction": "set the reduced precision reduction flags alike on every rank",
    "flags.cpu_capability": "set ATEN_CPU_CAPABILITY alike, or use equal processors: results differ in rounding",
    "flags.mkldnn": "set torch.backends.mkldnn.enabled alike on every rank",
    "flags.threads": "give every rank the same number of threads; a rank with fewer is late",
}
"""Fact -> what to do where it differs. A difference changes results or what is measured."""

_SHOULD_AGREE = {
    "kernel": "boot the same kernel on every host",
    "governor": "set the same frequency governor on every host (cpupower frequency-set -g performance)",
    "memory_bytes": "group equal hosts into one partition",
    "cores": "give every rank the same number of cores (the scheduler's cpus-per-task, or the launcher's binding)",
    "iommu": "set the same IOMMU mode in every host's boot parameters",
}

MEMORY_OFF = 0.02
"""Memory sizes that differ by no more than this fraction count as equal."""


def differences(facts: Mapping[int, Mapping[str, Any]]) -> tuple[Difference, ...]:
    """Facts with more than one value among the ranks, those that matter first. Missing counts as None."""
    distinct = []
    keys = {key for flat in facts.values() for key in flat}
    for key in sorted(keys, key=lambda k: (k not in _MUST_AGREE, k not in _SHOULD_AGREE, k)):
        if key == "hostname" or is_private(key):
            continue
        by_value: dict[str, list[int]] = {}
        for rank, flat in sorted(facts.items()):
            by_value.setdefault(json.dumps(flat.get(key)), []).append(rank)
        if key == "memory_bytes" and _about_equal([flat.get(key) for flat in facts.values()]):
            continue
        if len(by_value) > 1:
            ordered = sorted(by_value.items(), key=lambda item: (-len(item[1]), item[1]))
            values = tuple(Differing(value=json.loads(text), ranks=tuple(ranks)) for text, ranks in ordered)
            distinct.append(Difference(key=key, values=values))
    return tuple(distinct)


def _about_equal(sizes: Sequence[int | None]) -> bool:
    """Equal hosts reserve slightly different amounts for firmware and kernel."""
    given = [size for size in sizes if size is not None]
    return len(given) == len(sizes) and min(given) > (1 - MEMORY_OFF) * max(given)


def problems(distinct: Sequence[Difference]) -> Iterator[Problem]:
    """A problem for each difference that matters; names the rank if a single one differs."""
    for item in distinct:
        remedy = _MUST_AGREE.get(item.key) or _SHOULD_AGREE.get(item.key)
        if item.key.startswith(VARIABLE):
            remedy = f"set {item.key.removeprefix(VARIABLE)} alike on every rank"
        if remedy is not None:
            severity = ERROR if item.key in _MUST_AGREE else WARNING
            yield Problem(what=sentence(item), rank=odd_rank(item), remedy=remedy, severity=severity)


def between_launches(facts: Mapping[int, Mapping[str, Any]]) -> Iterator[str]:
    """A line where launches, whose figures are averaged, ran on unlike machines or software. `facts`: rank 0's of each.

    Settings of torch are left out: the launches of a study may differ in them by intent.
    """
    unlike = [d for d in differences(facts) if d.key in _MUST_AGREE and not d.key.startswith("flags.")]
    if unlike:
        each = (f"{d.key}: {', '.join(dict.fromkeys(_text(v.value) for v in d.values))}" for d in unlike)
        yield f"launches ran on unlike machines or software and are averaged as one ({'; '.join(each)})"


def odd_rank(item: Difference) -> int | None:
    """The one rank that differs from all others, where there is one and more than one other."""
    first, *others = item.values
    alone = len(others) == 1 and len(others[0].ranks) == 1 and len(first.ranks) > 1
    return others[0].ranks[0] if alone else None


def sentence(item: Difference) -> str:
    """`torch differs: 2.13.0 on ranks 0-2, 2.12.0 on rank 3`."""
    values = (f"{_text(v.value)} on {ranks_text(v.ranks)}" for v in item.values)
    return f"{item.key} differs: {', '.join(values)}"


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0-2 and 5`."""
    parts = spans(ranks)
    text = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"rank{'s' if len(ranks) > 1 else ''} {text}"


def of_ranks(distinct: Sequence[Difference], ranks: Sequence[int]) -> tuple[str, ...]:
    """Sentences on what separates some ranks from the others: facts on which they agree with none of these."""
    sentences = []
    for item in distinct:
        mine = [v for v in item.values if set(v.ranks) & set(ranks)]
        if all(set(v.ranks) <= set(ranks) for v in mine):
            theirs = [v for v in item.values if v not in mine]
            ours, others = (", ".join(_text(v.value) for v in values) for values in (mine, theirs))
            sentences.append(f"{item.key} is {ours} instead of {others}")
    return tuple(sentences)


def _text(value: Any) -> str:
    return "unset" if value is None else str(value)
