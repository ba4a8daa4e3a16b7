import os

import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=not torch.cuda.is_available())
total = accelerator.reduce(torch.tensor([accelerator.process_index + 1.0], device=accelerator.device))
visible = os.environ["CUDA_VISIBLE_DEVICES"]
print(f"rank {accelerator.process_index} of {accelerator.num_processes}: {total.item()} on {visible}", flush=True)
accelerator.end_training()
