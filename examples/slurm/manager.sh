#!/bin/bash
# The manager of an experiment as a Slurm job: adds the tasks of the sweep, and writes the tables of results. It needs no GPU, and
# may as well run on a login node. In the project, which has configs/config_exp*.yaml:
#
#   sbatch examples/slurm/manager.sh python train.py --lr {lr} --seed {seed}
#
# See docs/many-machines.md.
#SBATCH --job-name=gpu-owner-manager
#SBATCH --cpus-per-task=1
#SBATCH --mem=2G
#SBATCH --time=2-00:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
set -eu

export GPU_OWNER_QUEUE="${GPU_OWNER_QUEUE:-redis://login1.example?project=mnist}"
export GPU_OWNER_QUEUE_PASSWORD_FILE="${GPU_OWNER_QUEUE_PASSWORD_FILE:-$HOME/.config/gpu-owner/queue-password}"

exec gpu-owner exp manager --no-listen -- "$@"
