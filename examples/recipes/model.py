"""Stands for your training: replace it."""

import os
import time


def train(lr: float) -> float:
    print(f"lr={lr} on {os.environ['CUDA_VISIBLE_DEVICES']}", flush=True)
    time.sleep(1)
    return (lr - 0.01) ** 2
