import gpu_owner
import pytest


@pytest.fixture(scope="session", autouse=True)
def gpu():
    with gpu_owner.claim() as gpus:  # one for each worker, until its last test has ended
        yield gpus[0]
