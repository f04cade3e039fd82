#!/bin/sh
# Start torchrun.sh with ranks that are bound to the cores near their GPUs, if all of this machine's can be.
#
#   bind.sh RANKS PROFILE torchrun-arguments...
#
# SCALING_NUMA_BINDING (node, socket, ...) is how; unset: ranks are not bound. numa_binding.py finds out whether torchrun
# can do so for every one of the RANKS ranks. SCALING_NUMA_BOUND tells the workers what became of it, for the report.
# Every rank still sees every GPU, which NVLink and P2P need.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
ranks=$1
profile=$2
shift 2

if [ -n "${SCALING_NUMA_BINDING-}" ]; then
    # torch logs a traceback when a binding fails; the launch goes on without it, so the traceback is dropped.
    if why=$("${SCALING_PYTHON:-python3}" "$here/numa_binding.py" "$SCALING_NUMA_BINDING" "$ranks" 2>/dev/null); then
        set -- "--numa-binding=$SCALING_NUMA_BINDING" "$@"
        SCALING_NUMA_BOUND="bound ($SCALING_NUMA_BINDING)"
    else
        SCALING_NUMA_BOUND="not bound: ${why:-the check failed}"
        echo "ranks are not bound to cores: ${why:-the check failed}"
    fi
    export SCALING_NUMA_BOUND
fi

exec "$here/torchrun.sh" "$profile" "$@"
