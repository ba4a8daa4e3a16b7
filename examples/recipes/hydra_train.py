import signal

import gpu_owner
import hydra
from model import train
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path=None)
def main(config: DictConfig) -> None:
    with gpu_owner.claim(once=True):  # a worker of joblib keeps its GPU for its next job
        train(lr=config.lr)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: joblib ends its workers, too
    main()
