"""What FSDP2 and DTensor have inside, under the names of torch 2.11 and of 2.13."""

from __future__ import annotations

import functools
from typing import Any

import torch


@functools.cache
def shard_fused_sgd() -> None:
    """Let the fused SGD and Adagrad take DTensors, once a process: torch lists the fused Adam and AdamW alone.

    All of them work on each element by itself, so a rank's shards are enough.
    """
    from torch.distributed.tensor._ops import _pointwise_ops  # noqa: PLC0415

    known: Any = _pointwise_ops
    packets: Any = (torch.ops.aten._fused_sgd_, torch.ops.aten._fused_adagrad_)
    for packet in packets:
        for operator in (getattr(packet, name) for name in packet.overloads()):
            if hasattr(known, "_register_single_dim_pointwise"):
                known._register_single_dim_pointwise(operator)  # noqa: SLF001
            elif hasattr(known, "list_pointwise_strategy"):  # torch 2.11
                schema = known.RuntimeSchemaInfo(needs_pytree=True)
                known.register_op_strategy(operator, schema_info=schema)(known.list_pointwise_strategy)


def reduces_alone(info: Any) -> Any:
    """The communicator of a mesh's reduce-scatters alone, or None. torch 2.11 knows of none."""
    return getattr(info, "reduce_scatter_process_group", None)


def awaited_buffer(group: Any) -> Any:
    """The reduction whose input buffer a unit's own reduction waits for, with its `event`; None where it does not wait.

    torch 2.13 keeps several and waits for the oldest when they are all in use; 2.11 keeps one.
    """
    comm = group.comm_ctx
    if not hasattr(comm, "reduce_scatter_states"):
        return comm.reduce_scatter_state
    states = comm.reduce_scatter_states
    last = group._param_group_index == group._num_param_groups - 1  # noqa: SLF001
    return states[0] if last and len(states) >= comm.reduce_scatter_max_input_buffers else None


def last_reductions(group: Any) -> list[Any]:
    """The events that the compute stream waits for at the end of backward, when this unit is finalized.

    torch 2.13 waits for the last of each stream once; 2.11 with each unit for that unit's own.
    """
    if hasattr(group.comm_ctx, "_last_post_reduce_events"):
        return list(group.comm_ctx._last_post_reduce_events.values())  # noqa: SLF001
    own = group._post_reduce_event  # noqa: SLF001
    return [] if own is None else [own]
