"""How to get the files that `scaling trace` and `scaling import` read from a job that runs without this program.

Variables: torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp and FlightRecorder.hpp, plugins/profiler/inspector of NCCL,
NCCL's user guide, Kineto's and Dynolog's README. /shared stands for a folder that all nodes see.
"""

from __future__ import annotations

_LINES = (
    (
        "a job that hangs",
        "TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_FR_DUMP_TEMP_FILE=/shared/fr/nccl_trace_rank_",
        "torchfrtrace --prefix nccl_trace_rank_ /shared/fr reads a dump of each rank "
        "(torch before 2.9 has other names for the first and the last: "
        "TORCH_NCCL_TRACE_BUFFER_SIZE, TORCH_NCCL_DEBUG_INFO_TEMP_FILE)",
    ),
    (
        "its dump now, not at the time-out",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/fr_ beside them, then on each node: "
        "for p in /tmp/fr_*; do echo 1 > $p; done",
        "the same dumps",
    ),
    (
        "the slow rank, and the bandwidth by size",
        "NCCL_PROFILER_PLUGIN=/path/libnccl-profiler-inspector.so NCCL_INSPECTOR_ENABLE=1 "
        "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=1000000 NCCL_INSPECTOR_DUMP_DIR=/shared/inspector",
        "NCCL Inspector's records, a file a process (RCCL: librccl-profiler-inspector.so)",
    ),
    (
        "where a step's time goes",
        "KINETO_USE_DAEMON=1 (dynolog on the nodes), then: dyno --hostname NODE gputrace --log-file /shared/trace.json",
        "a profiler trace a rank; in code: torch.profiler.profile(on_trace_ready=tensorboard_trace_handler(DIR))",
    ),
    (
        "what the links reach",
        "srun -N 2 --ntasks-per-node=8 --gpus-per-task=1 all_reduce_perf -b 8 -e 8G -f 2 > 2node_all_reduce.log",
        "scaling import nccl-tests 2node_all_reduce.log; scaling trace INSPECTOR --beside 2node_all_reduce.log",
    ),
    (
        "how the devices are connected",
        "NCCL_TOPO_DUMP_FILE=/shared/topo.xml, or: srun -N 1 nvidia-smi topo -m > topo.txt",
        "scaling import nccl-xml topo.xml, scaling import topo topo.txt",
    ),
)

HOW = tuple(line for what, get, then in _LINES for line in (f"# {what}", f"    {get}", f"    -> {then}"))
"""For each kind of file: what it answers, what to set or run, and what comes of it."""
