#!/bin/sh
# What one srun task a node runs: torchrun.sh with this node's number and its share of the ranks.
#
#   srun --ntasks-per-node=1 slurm_node.sh RANKS,RANKS,... PROFILE torchrun-arguments...
#
# How many ranks each node runs, in the order of the nodes: 8,8,4 fills a node before the next, 7,7,6 spreads them.
# SCALING_NUMA_BINDING (node, socket, ...) binds each rank to the cores near its GPU, where torch can do that and
# numactl is there; every rank keeps seeing every GPU, which NVLink and P2P need.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
share=$(echo "$1" | cut -d, -f$((SLURM_NODEID + 1)))
profile=$2
shift 2

can_bind='import importlib.util as u, pathlib, sys
sys.exit(not (pathlib.Path(u.find_spec("torch").origin).parent / "numa" / "binding.py").is_file())'
if [ -n "${SCALING_NUMA_BINDING-}" ]; then
    if command -v numactl >/dev/null && "${SCALING_PYTHON:-python3}" -c "$can_bind"; then
        set -- "--numa-binding=$SCALING_NUMA_BINDING" "$@"
    else
        echo "ranks are not bound to cores: torch's numa binding or numactl is missing"
    fi
fi

exec "$here/torchrun.sh" "$profile" --node-rank="$SLURM_NODEID" --nproc-per-node="$share" "$@"
