#!/bin/sh
# How long programs that lock as gpu_lock and PID files do take from looking at a lock file to having written their own. In that
# time they don't see a claim that begins. Usage: bench/convention-windows.sh [ROUNDS]
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
for name in gpu_lock pid-files; do
  python3 "$(dirname "$0")/../test/conventions/fixtures/original.py" window "$name" "$directory" "${1:-20000}"
done
