#!/bin/sh
# What one srun task a node runs: torchrun.sh with this node's number and its share of the ranks.
#
#   srun --ntasks-per-node=1 slurm_node.sh RANKS,RANKS,... PROFILE torchrun-arguments...
#
# How many ranks each node runs, in the order of the nodes: 8,8,4 fills a node before the next, 7,7,6 spreads them.
# SCALING_NUMA_BINDING (node, socket, ...) binds each rank to the cores near its GPU, where numa_binding.py finds that
# torchrun can do so for every rank of this node; every rank keeps seeing every GPU, which NVLink and P2P need.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
share=$(echo "$1" | cut -d, -f$((SLURM_NODEID + 1)))
profile=$2
shift 2

if [ -n "${SCALING_NUMA_BINDING-}" ]; then
    # What torch logs of a failure, with its traceback, is no failure of the launch.
    if why=$("${SCALING_PYTHON:-python3}" "$here/numa_binding.py" "$SCALING_NUMA_BINDING" "$share" 2>/dev/null); then
        set -- "--numa-binding=$SCALING_NUMA_BINDING" "$@"
    else
        echo "ranks are not bound to cores: ${why:-trying it failed}"
    fi
fi

exec "$here/torchrun.sh" "$profile" --node-rank="$SLURM_NODEID" --nproc-per-node="$share" "$@"
