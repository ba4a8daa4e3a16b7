#!/bin/sh
':' /*
# Shell and JavaScript in one file: the shell runs the lines up to "exec" and becomes Node.js; to JavaScript they are a
# comment.
#
# Why a shell first: before any JavaScript runs, Node.js changes what a process inherits and passes on, but a command
# under "gpu-owner run" should start exactly as it would without it. Only this moment can see what was there; it goes
# into GPU_OWNER_INHERITED, a list of KEY=VALUE:
#   sigign   ignored signals (nohup ignores SIGHUP), a mask in hexadecimal
#   nofile   soft limit of open files
#   fds      inherited descriptors besides 0, 1 and 2 (make's job server, for instance)
# The program gpu-owner-keeper tells it; without that no command can be started. Names are odd because the environment's own
# must not be overwritten.
GPU_OWNER_INHERITED=
# Shells other than bash drop variables that they cannot name, such as bash's exported functions ("module" of environment
# modules). Only commands that start commands need them. They travel as digits, since neither shells nor JavaScript leave all bytes
# as they are, in variables GPU_OWNER_DROPPED_0 and up, as the kernel limits the size of each; "dropped" says how many.
case "${BASH_VERSION:+bash} $* " in
  ' run '* | ' submit '* | ' exp '* | ' '*' run '* | ' '*' submit '* | ' '*' exp '*) gpu_owner_d=$$ ;;
  *) gpu_owner_d= ;;
esac
# Links to this file lie in node_modules/.bin, or in PREFIX/bin with the package in PREFIX/lib/node_modules or PREFIX/lib. Other
# links take a program more to follow.
gpu_owner_0=$0
while :; do
  for gpu_owner_a in "${gpu_owner_0%/*}/.." "${gpu_owner_0%/*}/../gpu-owner" "${gpu_owner_0%/*}/../lib/node_modules/gpu-owner" \
    "${gpu_owner_0%/*}/../lib/gpu-owner"; do
    [ ! "$gpu_owner_a/bin/gpu-owner.cjs" -ef "$gpu_owner_0" ] || break 2
  done
  gpu_owner_a=
  # Where there is no readlink, Node.js follows the link itself.
  [ -L "$gpu_owner_0" ] && gpu_owner_a=$(readlink -f "$gpu_owner_0") || break
  gpu_owner_0=$gpu_owner_a
done
gpu_owner_n=${GPU_OWNER_NODE:-node}
gpu_owner_k=
if [ -n "$gpu_owner_a" ]; then
  # Releases for machines without Node.js bring their own.
  [ -n "$GPU_OWNER_NODE" ] || [ ! -x "$gpu_owner_a/bin/node" ] || gpu_owner_n=$gpu_owner_a/bin/node
  gpu_owner_b=$gpu_owner_a/build/Release
  if [ ! -x "$gpu_owner_b/gpu-owner-keeper" ]; then
    # Which processor this is, by where its systems have their loaders.
    if [ -e /lib64/ld-linux-x86-64.so.2 ]; then
      [ -e /lib/ld-linux-aarch64.so.1 ] || gpu_owner_b=$gpu_owner_a/prebuilds/linux-x64
    elif [ -e /lib/ld-linux-aarch64.so.1 ]; then
      gpu_owner_b=$gpu_owner_a/prebuilds/linux-arm64
    fi
  fi
  if [ -x "$gpu_owner_b/gpu-owner-keeper" ]; then
    gpu_owner_k=$gpu_owner_b/gpu-owner-keeper
    # Without what LD_PRELOAD loads, which may open descriptors or print.
    GPU_OWNER_INHERITED=$(LD_PRELOAD= "$gpu_owner_k" inherited "$0" $gpu_owner_d 2>/dev/null)
  fi
fi
# In its first line what was inherited, in others the variables.
gpu_owner_digits=
case $GPU_OWNER_INHERITED in
  sigign=*"
"*)
    gpu_owner_digits=${GPU_OWNER_INHERITED#*"
"}
    GPU_OWNER_INHERITED=${GPU_OWNER_INHERITED%%"
"*} ;;
  sigign=*) ;;
  *) GPU_OWNER_INHERITED= ;;
esac
if [ -n "$gpu_owner_digits" ]; then
  gpu_owner_a=0
  gpu_owner_b=$IFS
  IFS='
'
  for gpu_owner_c in $gpu_owner_digits; do
    export "GPU_OWNER_DROPPED_$gpu_owner_a=$gpu_owner_c"
    gpu_owner_a=$((gpu_owner_a + 1))
  done
  IFS=$gpu_owner_b
  GPU_OWNER_INHERITED="$GPU_OWNER_INHERITED dropped=$gpu_owner_a"
fi
export GPU_OWNER_INHERITED
# Node.js would read these certificates now, which takes longer than most commands. The command gives the variable back.
# Paths with other letters stay: JavaScript may change their bytes.
case $NODE_EXTRA_CA_CERTS in
  '' | *[!A-Za-z0-9_/.+,@:=%-]*) ;;
  *)
    export GPU_OWNER_EXTRA_CA_CERTS="$NODE_EXTRA_CA_CERTS"
    unset NODE_EXTRA_CA_CERTS ;;
esac
if ! command -v "$gpu_owner_n" >/dev/null; then
  echo "gpu-owner: $gpu_owner_n: not found; gpu-owner needs Node.js 20.19, or 22.3 or newer, in PATH (or GPU_OWNER_NODE=its path). The wheel brings its own: uv tool install gpu-owner, or pipx install gpu-owner" >&2
  exit 127
fi
# A job here is a child of this program, which ends as soon as the job is announced. For one on another machine the command
# hears of Ctrl-C itself.
if [ "$1" = submit ] && [ -n "$gpu_owner_k" ]; then
  case " $* " in
    *' --on '* | *' --on='*) ;;
    *) exec "$gpu_owner_k" submit -- "$gpu_owner_n" "$gpu_owner_0" "$@" ;;
  esac
fi
exec "$gpu_owner_n" "$gpu_owner_0" "$@"
exit 126
*/
'use strict';
// Scripts and examples import this file first, for these lines alone: they say the same on a Node.js that can't run the rest.
const isImported = require.main !== module;
if (process.versions.deno) {
  process.stderr.write(`gpu-owner: Deno ${process.versions.deno} can't run gpu-owner, which needs Node.js 20.19, or 22.3 or newer.\n`);
  process.exit(isImported ? 1 : 70);
}
const [major, minor] = process.versions.node.split('.').map(Number);
// Before 22.3, and in 21, there is no process.getBuiltinModule.
if (major < 20 || major === 21 || minor < { 20: 19, 22: 3 }[major]) {
  const found = `${process.versions.node} (${process.execPath})`;
  process.stderr.write(`gpu-owner: Node.js ${found} is too old: 20.19, or 22.3 or newer, is needed. The wheel brings its own: uv tool install gpu-owner, or pipx install gpu-owner\n`);
  process.exit(isImported ? 1 : 70);
}

function start() {
  // What require(main) would do, without looking for packages on the way, which takes a millisecond.
  const path = require('node:path');
  const main = path.join(__dirname, '../dist/gpu-owner.cjs');
  let source;
  try {
    source = require('node:fs').readFileSync(main, 'latin1');
  } catch (error) {
    const why = error.code === 'ENOENT' ? 'is missing' : `can't be read (${error.code})`;
    process.stderr.write(`gpu-owner: not built: ${main} ${why}; run "npm ci" in ${path.dirname(__dirname)}\n`);
    process.exit(70);
  }
  const run = new (require('node:vm').Script)(`(function(require,__dirname){${source}\n})`, { filename: main });
  run.runInThisContext()(require, path.dirname(main));
}

if (!isImported) start();
