#!/bin/sh
# A program in any language: parameters come as arguments, the result is a line of JSON in a file.
#
#   gpu-owner exp run --gpus all --grid width=1,2 seed=42..44 -- ./train.sh {width} {seed}
set -eu
width=$1 seed=$2

echo "training with width $width and seed $seed on $CUDA_VISIBLE_DEVICES"
loss=$(awk -v w="$width" -v s="$seed" 'BEGIN { srand(s); printf "%.4f", 1 / w + rand() / 10 }')

printf '{"loss": %s}\n' "$loss" > "$GPU_OWNER_RESULT"
