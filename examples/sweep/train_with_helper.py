"""The same training as in train.py, with the Python helper: `pip install gpu-owner`, or the directory gpu_owner beside it.

    gpu-owner exp run --gpus all -- python3 train_with_helper.py

By hand, with the parameters below:    python3 train_with_helper.py
"""

import os
import random
import time

import gpu_owner

task = gpu_owner.task(default={"width_factor": 2, "lr": 0.1, "seed": 42})

random.seed(task.seed)
width, lr = task["width_factor"], task.get("lr", 0.1)
epochs, loss = 5, 2.3
for epoch in range(epochs):
    time.sleep(float(os.environ.get("SECONDS_PER_EPOCH", 0.02)))
    loss *= 1 - 0.3 * lr ** 0.2 * (1 - 0.5 / width) + random.uniform(-0.02, 0.02)
    # Later calls join and replace what earlier ones said. The result counts when the program has ended with exit code 0.
    gpu_owner.result({"loss": round(loss, 4), "epochs": epoch + 1})

gpu_owner.result({"accuracy": round(1 / (1 + loss), 4)})
