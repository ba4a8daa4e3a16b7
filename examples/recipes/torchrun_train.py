import os

import torch
import torch.distributed as dist

rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
if torch.cuda.is_available():
    torch.cuda.set_device(local_rank)  # the first GPU of the claim is cuda:0
    dist.init_process_group("nccl")
else:
    dist.init_process_group("gloo")
device = "cuda" if torch.cuda.is_available() else "cpu"
total = torch.tensor([rank + 1.0], device=device)
dist.all_reduce(total)
print(f"rank {rank} of {dist.get_world_size()}: {total.item()} on {os.environ['CUDA_VISIBLE_DEVICES']}", flush=True)
dist.destroy_process_group()
