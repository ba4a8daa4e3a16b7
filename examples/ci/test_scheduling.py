"""Tests of code that chooses GPUs, on machines that don't exist."""

import subprocess

import pynvml
import pytest


def idle_gpus():
    """The code under test: the GPUs on which nothing computes."""
    pynvml.nvmlInit()
    try:
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return [
            index for index, handle in enumerate(handles) if not pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        ]
    finally:
        pynvml.nvmlShutdown()


@pytest.mark.parametrize("machine, count", [("h200x8", 8), ("rtx4090x2-display", 2), (1, 1)])
def test_an_idle_machine(simulated, machine, count):
    simulated(machine)
    assert idle_gpus() == list(range(count))


def test_a_busy_gpu_is_left_alone(simulated):
    machine = simulated(4)
    with machine.occupied(2, "--memory=20GiB", "--name=python train.py"):
        assert idle_gpus() == [0, 1, 3]
    assert idle_gpus() == [0, 1, 2, 3]


def test_a_lost_gpu_is_an_error(simulated):
    simulated(2).set("gpu=1", "lost=on")
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        idle_gpus()


def test_scripts_that_call_nvidia_smi(simulated):
    simulated("h200x8")
    words = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    assert subprocess.check_output(words, text=True).splitlines() == ["NVIDIA H200, 143771"] * 8
