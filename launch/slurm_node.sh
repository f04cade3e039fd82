#!/bin/sh
# Run by one srun task on each node: starts bind.sh, and with it torchrun, with this node's number and share of the ranks.
#
#   srun --ntasks-per-node=1 slurm_node.sh RANKS,RANKS,... PROFILE torchrun-arguments...
#
# RANKS is the number of ranks on each node, in order: 8,8,4 fills a node before the next, 7,7,6 spreads them.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
share=$(echo "$1" | cut -d, -f$((SLURM_NODEID + 1)))
profile=$2
shift 2

exec "$here/bind.sh" "$share" "$profile" --node-rank="$SLURM_NODEID" --nproc-per-node="$share" "$@"
