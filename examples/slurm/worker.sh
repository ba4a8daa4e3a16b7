#!/bin/bash
# Workers of an experiment as an array of Slurm jobs, a GPU each. In the project, which all nodes share:
#
#   sbatch examples/slurm/worker.sh
#
# 40 jobs, 8 at a time: a job that has used up its time makes room for the next one, which goes on. Jobs that find nothing left to
# do end at once. See docs/many-machines.md.
#SBATCH --job-name=gpu-owner-worker
#SBATCH --array=1-40%8
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
#SBATCH --time=04:00:00
# 15 minutes before that time is over: no task is started any more. To this script alone (B:), not to the task.
#SBATCH --signal=B:TERM@900
# After the failure of a node, or where jobs with a higher priority take it.
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%A_%a.out
set -eu

export GPU_OWNER_QUEUE="${GPU_OWNER_QUEUE:-redis://login1.example?project=mnist}"
export GPU_OWNER_QUEUE_PASSWORD_FILE="${GPU_OWNER_QUEUE_PASSWORD_FILE:-$HOME/.config/gpu-owner/queue-password}"

# Without it, the worker would take the GPUs of other jobs, too.
: "${CUDA_VISIBLE_DEVICES:?Slurm has given this job no GPU: is --gres=gpu:1 right for this cluster?}"

# Signals must reach the worker, so it takes this shell's place. A task that runs then has 12 minutes to finish, before it is
# given back; that must be less than the 15 above.
exec gpu-owner exp worker --gpus all --grace 12m
