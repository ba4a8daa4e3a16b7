#!/bin/bash
# Workers of an experiment as an array of Grid Engine jobs, a GPU each. In the project, which all nodes share:
#
#   qsub examples/sge/worker.sh
#
# 40 jobs, 8 at a time: a job that has used up its time makes room for the next one, which goes on. Jobs that find nothing left to
# do end at once. Grid Engine only counts GPUs; which one a job gets is found out by the worker. See docs/many-machines.md.
#$ -S /bin/bash
#$ -N gpu-owner-worker
#$ -cwd -j y
#$ -t 1-40 -tc 8
#$ -l gpu=1
# SIGUSR1 15 minutes before the end. SIGUSR2 before SIGKILL (-notify), also after qdel: how long before, `qconf -sq QUEUE` says (notify).
#$ -l s_rt=03:45:00,h_rt=04:00:00 -notify
# After the failure of a node.
#$ -r y
set -u

export GPU_OWNER_QUEUE="${GPU_OWNER_QUEUE:-redis://login1.example?project=mnist}"
export GPU_OWNER_QUEUE_PASSWORD_FILE="${GPU_OWNER_QUEUE_PASSWORD_FILE:-$HOME/.config/gpu-owner/queue-password}"

# The worker has a process group of its own: these signals go to the script's whole group, and would end it.
set -m
# After SIGUSR1 a task has 12 minutes to finish, before it is given back; that must be less than the 15 above.
gpu-owner exp worker --gpus 1 --grace 12m &
worker=$!

asked=
drain() {
  [ -n "$asked" ] && return
  asked=yes # first: the next signal's trap may run between these two lines
  kill -TERM "$worker"
}
# The second signal: the task is given back at once. Two in the same moment would count as one.
stop() {
  drain
  sleep 1
  kill -TERM "$worker"
}
trap drain USR1
trap 'trap "" USR1 USR2 TERM; stop' USR2 TERM

while :; do
  wait "$worker" # ends with a signal, too
  code=$?
  kill -0 "$worker" 2>/dev/null || exit "$code"
done
