#!/bin/sh
# Every launcher starts its workers with this script: torchrun with the environment of a profile.
#
#   torchrun.sh PROFILE torchrun-arguments... -m scaling.worker RUN LAUNCH WORLD_SIZES
#
# PROFILE is gloo, nccl, xccl or simccl: profiles/PROFILE.env beside this file is read first. Variables that are
# already set take precedence, so `+env.NAME=value` on the command line overrides a profile.
# SCALING_PYTHON names the interpreter; the default is the python3 on the PATH.
set -eu

# torchrun takes options from the environment, too (PET_NO_PYTHON, PET_NNODES): the command line says all of them.
for name in $(env | sed -n 's/^\(PET_[A-Z_0-9]*\)=.*/\1/p'); do
    unset "$name"
done

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
profile=$1
shift

while IFS='=' read -r name value; do
    case $name in '' | '#'*) continue ;; esac
    eval "already=\${$name-}"
    if [ -z "$already" ]; then
        export "$name=$value"
    fi
done <"$here/profiles/$profile.env"

exec "${SCALING_PYTHON:-python3}" -m torch.distributed.run "$@"
