"""What ranks use of torch that torch does not promise: private names, each with the versions in which it is known.

Known in 2.11 and 2.13 alike, unless a docstring says otherwise. What follows a single class of torch closely stays with
what follows it: FSDP's units (fsdp_waits), a module's call (guard), the dispatcher (tap), and the probe's wrappers.
"""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

__all__ = ["ENGINE", "TorchDispatchMode", "tree_map_only"]

ENGINE = Variable._execution_engine  # noqa: SLF001
"""Takes callbacks for the end of backward, as FSDP's do: there is no other way to see the end of its compute."""


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """The tensors in nested lists, tuples and dicts."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def default_store() -> Any:
    """The store at which the ranks of the default group met."""
    return dist.distributed_c10d._get_default_store()  # noqa: SLF001


def set_timeout(limit: timedelta, group: Any) -> None:
    """How long the collectives of a group of NCCL or Gloo may take from now on."""
    dist.distributed_c10d._set_pg_timeout(limit, group)  # noqa: SLF001


def in_backward() -> bool:
    """Whether this thread runs a node of a backward."""
    return torch._C._current_graph_task_id() != -1  # noqa: SLF001


def node_in_backward() -> int | None:
    """The sequence number of the autograd node that runs; None outside of backward."""
    node = torch._C._current_autograd_node()  # noqa: SLF001
    return None if node is None else node._sequence_nr()  # noqa: SLF001


def last_node() -> int:
    """The sequence number of the autograd node that this thread made last."""
    return torch._C._autograd._get_sequence_nr() - 1  # noqa: SLF001


def packet_of(operator: Any) -> Any:
    """All overloads of an operator, the key of torch's registry of FLOPs."""
    return operator._overloadpacket  # noqa: SLF001


def aten_name(operator: Any) -> str:
    """An operator's name without `aten::`."""
    return str(operator._schema.name.removeprefix("aten::"))  # noqa: SLF001


def limit_recompiles(most: int) -> None:
    """Let torch.compile make so many graphs of one function."""
    torch._dynamo.config.recompile_limit = most  # noqa: SLF001


def rebuild_buckets(ddp: DistributedDataParallel) -> None:
    """Make DDP's buckets in the order of the gradients now, where it would do so at its next forward."""
    if ddp.reducer._rebuild_buckets():  # noqa: SLF001
        ddp._has_rebuilt_buckets = True  # noqa: SLF001  # as its forward notes


def logging_data(ddp: DistributedDataParallel) -> dict[str, Any]:
    """DDP's own report: settings, buckets, times."""
    return dict(ddp._get_ddp_logging_data())  # type: ignore[no-untyped-call]  # noqa: SLF001


def param_groups(unit: Any) -> list[Any]:
    """What a unit of FSDP communicates: its parameter groups, most often one; none where all are in other units.

    torch 2.11 has one a unit.
    """
    state = unit._get_fsdp_state()  # noqa: SLF001
    groups = getattr(state, "_fsdp_param_groups", None)
    return list(groups) if groups is not None else [g for g in (state._fsdp_param_group,) if g]  # noqa: SLF001


def whole_bytes(group: Any) -> int:
    """Size of a parameter group of FSDP in all ranks that share it together."""
    return sum(p._orig_size.numel() * p.sharded_param.element_size() for p in group.fsdp_params)  # noqa: SLF001


@functools.cache
def shard_fused_sgd() -> None:
    """Let the fused SGD and Adagrad take DTensors, once a process: torch lists the fused Adam and AdamW alone.

    All of them work on each element by itself, so a rank's shards are enough.
    """
    from torch.distributed.tensor._ops import _pointwise_ops  # noqa: PLC0415

    pointwise: Any = _pointwise_ops
    packets: Any = (torch.ops.aten._fused_sgd_, torch.ops.aten._fused_adagrad_)
    for packet in packets:
        for operator in (getattr(packet, name) for name in packet.overloads()):
            if hasattr(pointwise, "_register_single_dim_pointwise"):
                pointwise._register_single_dim_pointwise(operator)  # noqa: SLF001
            elif hasattr(pointwise, "list_pointwise_strategy"):  # torch 2.11
                schema = pointwise.RuntimeSchemaInfo(needs_pytree=True)
                pointwise.register_op_strategy(operator, schema_info=schema)(
                    pointwise.list_pointwise_strategy
                )


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
    event = group._post_reduce_event  # noqa: SLF001
    return [] if event is None else [event]
