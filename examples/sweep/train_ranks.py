"""A rank of a distributed training; started by torchrun in train_ranks.sh."""

import json
import os

import torch
import torch.distributed as dist

# Every rank has the task. GPUs are counted from 0 in it, whichever they are on the machine.
with open(os.environ["GPU_OWNER_TASK"]) as file:
    parameters = json.load(file)["parameters"]

on_gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if on_gpu else "gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")

torch.manual_seed(parameters["seed"])
loss = torch.tensor(2.3 * (1 - parameters["lr"]) + rank, device=device)
dist.all_reduce(loss)
mean = loss.item() / ranks

# One rank writes the result.
if rank == 0:
    with open(os.environ["GPU_OWNER_RESULT"], "w") as file:
        json.dump({"loss": mean, "ranks": ranks}, file)
dist.destroy_process_group()
