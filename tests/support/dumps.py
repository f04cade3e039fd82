"""Records of NCCL Inspector, made by hand."""

import json


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
