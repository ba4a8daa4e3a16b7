#!/bin/sh
# Runs a Docker container on the GPUs that `gpu-owner run` has claimed, and ends when the container does, with its exit code:
#
#   gpu-owner run -n 2 -- examples/docker.sh [OPTIONS OF docker create] IMAGE [COMMAND]
#
# The container's processes are no descendants of this script: Docker's daemon starts them. What keeps the lease is this
# script and the clients that it starts, each of which waits for the container's end. So the lease lasts as long as the
# container unless all of them are killed with SIGKILL. Ctrl-C reaches the container; SIGTERM and SIGHUP stop it.
# Not for `-it`: the container has no standard input.
set -u

if [ -z "${CUDA_VISIBLE_DEVICES:-}" ]; then
  echo "docker.sh: no GPUs are claimed; start it as: gpu-owner run -n 1 -- $0 $*" >&2
  exit 64
fi

# The inner quotes are for Docker, which would split the list at its commas.
container=$(docker create --init --gpus "\"device=$CUDA_VISIBLE_DEVICES\"" "$@") || exit
trap 'docker kill --signal INT "$container" >/dev/null' INT
trap 'docker stop "$container" >/dev/null' TERM HUP

if ! docker start "$container" >/dev/null; then
  docker rm "$container" >/dev/null
  exit 125
fi

# In sessions of their own: signals of the terminal are for the container, not for its clients.
setsid docker logs --follow "$container" </dev/null &
logs=$!

ended() {
  running=$(docker inspect --format '{{.State.Running}}' "$container" 2>&1)
  case $running in
    true) return 1 ;;
    false | *[Nn]o\ such*) return 0 ;;
    *) sleep 1; return 1 ;; # the daemon doesn't answer just now
  esac
}

until ended; do
  setsid docker wait "$container" >/dev/null 2>&1 </dev/null &
  wait $! # until a signal has come, or the container has ended
done

wait "$logs"
code=$(docker inspect --format '{{.State.ExitCode}}' "$container") || code=125
docker rm "$container" >/dev/null
exit "$code"
