"""Dumps of the flight recorder and records of NCCL Inspector, made by hand."""

from __future__ import annotations

import json


def entry(record, seq, kind="all_reduce", elements=1000, group=("0", "default_pg"), at_s=None, **changes):
    """An entry as torch writes it to JSON; created `at_s` seconds after a fixed moment."""
    sizes = [[elements]]
    return {
        "record_id": record,
        "process_group": list(group),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": f"nccl:{kind}",
        "time_created_ns": 1_700_000_000_000_000_000 + round((seq / 1e3 if at_s is None else at_s) * 1e9),
        "input_sizes": sizes,
        "output_sizes": sizes,
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "state": "completed",
        "retired": True,
        "time_discovered_started_ns": 0,
        "time_discovered_completed_ns": 0,
        "timeout_ms": 600000,
        "is_p2p": False,
        **changes,
    }


def write_dump(folder, rank, entries, ranks=2, groups=None):
    """One rank's file; `groups`: name -> members."""
    config = {
        name: {"name": name, "desc": "", "ranks": str(m)}
        for name, m in (groups or {"0": list(range(ranks))}).items()
    }
    document = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"nccl_trace_rank_{rank}.json"
    path.write_text(json.dumps(document))
    return path


def record(rank, sn, time_us, size=1 << 20, ranks=4, coll="AllReduce", comm="0xabc", **header):
    """An object of NCCL Inspector, with the bandwidth that it states."""
    whole = size * (ranks if coll in ("AllGather", "ReduceScatter") else 1)
    return {
        "header": {"id": comm, "rank": rank, "n_ranks": ranks, "nnodes": 1, **header},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "hostname": f"node{rank // 2}",
            "pid": 100 + rank,
        },
        "coll_perf": {
            "coll": coll,
            "coll_sn": sn,
            "coll_msg_size_bytes": size,
            "coll_exec_time_us": time_us,
            "coll_timing_source": "kernel_gpu",
            "coll_algobw_gbs": whole / time_us / 1e3,
            "coll_busbw_gbs": whole / time_us / 1e3,
        },
    }


def write_records(path, records, indent=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(r, indent=indent) for r in records) + "\n")
    return path
