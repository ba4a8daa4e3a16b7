import ray
from model import train

ray.init(address="local")  # never a cluster that another user has started on this machine


@ray.remote(num_gpus=1)
def job(lr: float) -> float:
    return train(lr=lr)


print(ray.get([job.remote(lr) for lr in (0.1, 0.03, 0.01, 0.003)]))
