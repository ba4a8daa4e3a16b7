#!/bin/sh
# What stands for a training job in six-workers.mjs: says which process it is and which GPU it was given, and works until
# its standard input ends.
echo "$$ $CUDA_VISIBLE_DEVICES"
read -r _
