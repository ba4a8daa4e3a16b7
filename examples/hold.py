#!/usr/bin/env python3
"""Claims a GPU from Python, with nothing but the standard library, by keeping `gpu-owner hold` running.

    python3 examples/hold.py                            a GPU of this machine
    GPU_OWNER_SIMULATE=4 python3 examples/hold.py       a simulated one
"""

import json
import os
import pathlib
import subprocess

GPU_OWNER = pathlib.Path(__file__).parent.parent / 'bin' / 'gpu-owner.cjs'  # or 'gpu-owner', once it is in PATH

# The GPU is held as long as the pipe to its standard input is open, and no longer than this process lives.
holder = subprocess.Popen(
    [GPU_OWNER, 'hold', '-n', '1'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
)
line = holder.stdout.readline()
if not line:
    # gpu-owner has said why on standard error.
    raise SystemExit(holder.wait())
claim = json.loads(line)
os.environ['CUDA_VISIBLE_DEVICES'] = claim['visibleDevices']

# From here on: import torch, …
for device in claim['devices']:
    print(f"this process owns GPU {device['index']} ({device['name']})")

holder.stdin.close()
holder.wait()
