from dataclasses import dataclass

from hydra.core.config_store import ConfigStore
from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf
from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher


class GPUOwnerLauncher(BaseSubmititLauncher):
    _EXECUTOR = "gpuowner"


@dataclass
class GPUOwnerConf(BaseQueueConf):
    _target_: str = "hydra_plugins.gpuowner.GPUOwnerLauncher"


ConfigStore.instance().store(group="hydra/launcher", name="submitit_gpuowner", node=GPUOwnerConf, provider="gpuowner")
