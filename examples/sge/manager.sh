#!/bin/bash
# The manager of an experiment as a Grid Engine job: adds the tasks of the sweep, and writes the tables of results. It needs no GPU,
# and may as well run on a login node. In the project, which has configs/config_exp*.yaml:
#
#   qsub examples/sge/manager.sh python train.py --lr {lr} --seed {seed}
#
# It may be killed and submitted again at any time. See docs/many-machines.md.
#$ -S /bin/bash
#$ -N gpu-owner-manager
#$ -cwd -j y
#$ -l h_rt=48:00:00
#$ -r y
set -u

export GPU_OWNER_QUEUE="${GPU_OWNER_QUEUE:-redis://login1.example?project=mnist}"
export GPU_OWNER_QUEUE_PASSWORD_FILE="${GPU_OWNER_QUEUE_PASSWORD_FILE:-$HOME/.config/gpu-owner/queue-password}"

exec gpu-owner exp manager --no-listen -- "$@"
