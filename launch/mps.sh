#!/bin/sh
# Run a launch whose ranks share one GPU beside an MPS server of its own, so that their kernels run at the same time.
#
#   mps.sh COMMAND arguments...
#
# Without MPS the ranks take turns on the GPU, and every collective takes milliseconds.
#
# The server has a pipe directory of its own, so the next launch does not meet one that a killed rank left in an error
# state. Whoever holds the write end of the FIFO below is the launch. When it ends, in whatever way, the process that
# reads from it sees the end of the file, ends the server and removes the folder. A server that the caller runs already
# is used, and left as it is.
set -eu

gpus=${CUDA_VISIBLE_DEVICES-0}
export CUDA_VISIBLE_DEVICES="${gpus%%,*}"

if ! command -v nvidia-cuda-mps-control >/dev/null; then
    echo "one GPU shared without MPS: nvidia-cuda-mps-control is not on the PATH; each collective takes milliseconds"
    exec "$@"
fi
if echo get_server_list | timeout 5 nvidia-cuda-mps-control >/dev/null 2>&1; then
    echo "one GPU shared by the MPS server that runs here already"
    exec "$@"
fi

folder=$(mktemp -d /tmp/scaling-mps-XXXXXX) # short: sockets lie in it
export CUDA_MPS_PIPE_DIRECTORY="$folder" CUDA_MPS_LOG_DIRECTORY="$folder"
mkfifo "$folder/launch"
exec 9<>"$folder/launch" 8<"$folder/launch" # opened for both first, since to open one end alone waits for the other
setsid sh -c '
    read -r _
    echo quit | timeout 10 nvidia-cuda-mps-control
    pid=$(cat "$1/nvidia-cuda-mps-control.pid" 2>/dev/null) && kill -9 "$pid"
    rm -rf "$1"
' end-mps "$folder" <&8 8<&- 9>&- >/dev/null 2>&1 &
exec 8<&-

# The server numbers the GPUs that it sees, so it sees all of them.
if (unset CUDA_VISIBLE_DEVICES && exec timeout 20 nvidia-cuda-mps-control -d) 9>&-; then
    echo "one GPU shared by an MPS server in $folder"
else
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    exec 9>&-
    echo "one GPU shared without MPS: its server could not be started; each collective takes milliseconds"
fi
exec "$@"
