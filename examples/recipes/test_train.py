import pytest
from model import train


@pytest.mark.parametrize("lr", [0.1, 0.05, 0.03, 0.02, 0.01, 0.005, 0.003, 0.001])
def test_train(lr: float, gpu: int) -> None:
    assert gpu == 0  # CUDA shows this worker its GPU alone
    assert train(lr) < 0.01
