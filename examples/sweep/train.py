"""A training as `gpu-owner exp run` starts it, with the standard library only.

    gpu-owner exp run --gpus all -- python3 train.py

By hand, without a task:    python3 train.py '{"width_factor": 2, "seed": 42}'
"""

import json
import os
import random
import sys
import time

# The task: a JSON file. By hand: what the command line says.
if "GPU_OWNER_TASK" in os.environ:
    with open(os.environ["GPU_OWNER_TASK"]) as file:
        parameters = json.load(file)["parameters"]
else:
    parameters = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}

# A stand-in for a training: a curve that depends on the parameters and on the seed.
random.seed(parameters.get("seed", 0))
width, lr = parameters.get("width_factor", 1), parameters.get("lr", 0.1)
epochs, loss = 5, 2.3
for epoch in range(epochs):
    time.sleep(float(os.environ.get("SECONDS_PER_EPOCH", 0.02)))
    loss *= 1 - 0.3 * lr ** 0.2 * (1 - 0.5 / width) + random.uniform(-0.02, 0.02)
    print(f"epoch {epoch + 1}/{epochs}: loss {loss:.4f} on GPU {os.environ.get('CUDA_VISIBLE_DEVICES', '(none)')}")

# The result: a JSON file, too. Each key becomes a column of the table.
result = {"loss": round(loss, 4), "accuracy": round(1 / (1 + loss), 4), "epochs": epochs}
if "GPU_OWNER_RESULT" in os.environ:
    with open(os.environ["GPU_OWNER_RESULT"], "w") as file:
        json.dump(result, file)
else:
    print(json.dumps(result))
