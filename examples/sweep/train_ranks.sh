#!/bin/sh
# Several ranks on several GPUs: torchrun, with a port that no other task on this machine has.
#
#   gpu-owner exp run --gpus 4 --gpus-per-task 2 --grid lr=0.1,0.01 seed=42,43 -- ./train_ranks.sh
set -eu
exec torchrun --nproc-per-node "${RANKS:-gpu}" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" train_ranks.py "$@"
