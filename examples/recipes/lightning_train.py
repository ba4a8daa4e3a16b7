import os

import lightning
import torch
from torch.utils.data import DataLoader


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        return self.layer(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    gpus = os.environ["CUDA_VISIBLE_DEVICES"].split(",")  # those of `gpu-owner run`
    trainer = lightning.Trainer(
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        devices=len(gpus),
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(Model(), DataLoader(torch.randn(64, 8), batch_size=8))
    print(f"rank {trainer.global_rank} of {trainer.world_size} on {','.join(gpus)}", flush=True)
