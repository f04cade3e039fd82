#!/bin/sh
# Run by one srun task on each node: starts torchrun.sh with this node's number and its share of the ranks.
#
#   srun --ntasks-per-node=1 slurm_node.sh RANKS,RANKS,... PROFILE torchrun-arguments...
#
# RANKS is the number of ranks on each node, in order: 8,8,4 fills a node before the next, 7,7,6 spreads them.
# SCALING_NUMA_BINDING (node, socket, ...) binds each rank to the cores near its GPU, if numa_binding.py finds that
# torchrun can do so for every rank of this node. Every rank still sees every GPU, which NVLink and P2P need.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
share=$(echo "$1" | cut -d, -f$((SLURM_NODEID + 1)))
profile=$2
shift 2

if [ -n "${SCALING_NUMA_BINDING-}" ]; then
    # torch logs a traceback when a binding fails; the launch goes on without it, so the traceback is dropped.
    if why=$("${SCALING_PYTHON:-python3}" "$here/numa_binding.py" "$SCALING_NUMA_BINDING" "$share" 2>/dev/null); then
        set -- "--numa-binding=$SCALING_NUMA_BINDING" "$@"
    else
        echo "ranks are not bound to cores: ${why:-the check failed}"
    fi
fi

exec "$here/torchrun.sh" "$profile" --node-rank="$SLURM_NODEID" --nproc-per-node="$share" "$@"
