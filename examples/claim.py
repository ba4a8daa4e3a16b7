#!/usr/bin/env python3
"""Claims a GPU from Python, shows what CUDA will see, and gives it back.

    python3 examples/claim.py                            a GPU of this machine
    GPU_OWNER_SIMULATE=4 python3 examples/claim.py       a simulated one
"""

import os
import pathlib
import sys

# Not needed once it is installed: pip install gpu-owner
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))

import gpu_owner

try:
    with gpu_owner.claim(wait="1m") as gpus:
        # From here on: import torch, …
        for gpu in gpus:
            print(f"this process owns GPU {gpu.index} ({gpu.name}); to CUDA it is cuda:{gpu}")
        print(f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']}")
except gpu_owner.GPUOwnerError as error:
    sys.exit(f"{error.code}: {error}")
