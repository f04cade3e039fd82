"""What stamps of single collectives cost the step, and whether anything may rest on them. Pure.

A stamp at a collective's end can hold up what lies behind it on the same queue of the device, and then the detailed
step is another one than the step that it should explain. So the detailed blocks are held against the light ones of the
same rounds: the step, and what each rank computes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from scaling.analysis.decompose.quantities import TrialRecords
from scaling.analysis.results import Details, Measured, RankInDetails, Verdict
from scaling.analysis.statistics.rounds import MS, Floats, Rounds, level_of_each
from scaling.records.format import DISTURBS, UNKNOWN_STREAM
from scaling.settings.plan import Plan
from scaling.settings.run import LEAST_ROUNDS
from scaling.settings.schedule import PLAIN, PROBE

MOVED = 0.03
"""Own compute that details move by a smaller share of the step makes no cause: none is named below it."""
SHOWN = 8
"""Ranks that are shown, of those whose compute is moved most."""
WITHHELD = {
    DISTURBS: "what each bucket takes cannot be seen here without disturbing the step: stamps of collectives would "
    "hold up compute on the same work queue of the device (CUDA_DEVICE_MAX_CONNECTIONS is 1, or too few)",
    UNKNOWN_STREAM: "what each bucket takes cannot be seen here without disturbing the step: the stream on which "
    "the back end runs its collectives was not found",
}
NOT_PROVED = (
    "stamps of NCCL's collectives can hold up the step on a GPU, and no GPU has shown yet that these do not"
)


def details(
    records: TrialRecords, plan: Plan, device_name: str, withheld: Sequence[str] = ()
) -> Details | None:
    """None where a rank lacks blocks with details or without. `device_name`: as recorded; empty: not a real device.

    `withheld`: why ranks recorded none though they were to (BlockRecord.withheld).
    """
    n = records.trial.world_size
    if withheld:
        return Details(over_light=None, disturbs=False, ranks=(), unused=WITHHELD[min(withheld)])
    both = {name: records.by_rank(PROBE, detailed=name == "detailed") for name in ("light", "detailed")}
    compute = {name: phases["forward"] + phases["compute"] for name, phases in both.items()}
    if n < 2 or not all((np.isfinite(values).any(axis=0)).all() for values in compute.values()):
        return None
    apart = np.nanmean(compute["detailed"], axis=0) - np.nanmean(compute["light"], axis=0)
    shown = [int(rank) for rank in np.argsort(-np.abs(apart))[:SHOWN]]
    values: dict[str, Floats] = {PLAIN: records.arm(PLAIN)["step"]}
    values |= {f"plain.{half}": records.arm(PLAIN, half=half)["step"] for half in (0, 1)}
    values |= {name: phases["step"].mean(axis=1) for name, phases in both.items()}
    values |= {f"{name}.{rank}": each[:, rank] for rank in shown for name, each in compute.items()}
    rounds = records.in_rounds(values, plan)
    same = rounds.ratio(lambda m: m["plain.1"] / m["plain.0"])
    bar = max(MOVED, same.departure() if same else 0.0)
    moved = {rank: _moved(rounds, rank, n) for rank in shown}
    disturbed = [rank for rank, by in moved.items() if by is not None and by.differs_from(0, by=bar)]
    why = ""
    if disturbed:
        why = _sentence(compute, disturbed[0])
    elif plan.spec.topology.backend == "nccl" and device_name and not plan.spec.topology.is_simulated:
        why = NOT_PROVED
    return Details(
        over_light=rounds.ratio(lambda m: m["detailed"] / m["light"]),
        disturbs=bool(disturbed),
        ranks=tuple(
            RankInDetails(
                rank=rank,
                light_ms=rounds.measure(f"light.{rank}", scale=MS),
                detailed_ms=rounds.measure(f"detailed.{rank}", scale=MS),
            )
            for rank in sorted(shown)
        ),
        unused=why,
    )


def too_few(records: TrialRecords) -> str:
    """Why no cause can rest on details that only some rounds of a short run have; empty where enough have them."""
    rounds, detailed = records.index.height, len({cycle.key for cycle in records.cycles})
    if not 0 < detailed < LEAST_ROUNDS <= rounds:
        return ""
    return f"details fitted into {detailed} of {rounds} rounds, too few for an interval"


def with_reason(verdict: Verdict, unused: Mapping[int, str], detailed: Collection[int]) -> Verdict:
    """The verdict on what all ranks wait alike, with why nothing splits it.

    `unused`: by world size. `detailed`: world sizes whose details were used.
    """
    if verdict.cause != "communication":
        return verdict
    used = verdict.world_size in detailed
    why = "the times of messages tell neither" if used else "no details were recorded"
    why = unused.get(verdict.world_size, why)
    split = f"how much of it is latency, bandwidth or ranks that are late in turns cannot be separated: {why}"
    return dataclasses.replace(verdict, evidence=(*verdict.evidence, split))


def _moved(rounds: Rounds, rank: int, n: int) -> Measured | None:
    """How much longer a rank computes in detailed steps, as a share of the step; surely so among all `n` ranks."""
    return rounds.measure(
        lambda m: (m[f"detailed.{rank}"] - m[f"light.{rank}"]) / m["light"], level=level_of_each(n)
    )


def _sentence(compute: Mapping[str, Floats], rank: int) -> str:
    light, detailed = (float(np.nanmean(compute[name][:, rank])) * MS for name in ("light", "detailed"))
    return (
        f"stamps of single collectives disturb this step: rank {rank} computes {detailed:.1f} ms with them and "
        f"{light:.1f} ms without"
    )
