import wandb
from model import train

with wandb.init(config={"lr": 0.1}) as run:  # a sweep replaces these
    run.log({"loss": train(lr=run.config.lr)})
