"""Simulated GPUs for pytest: start it by `gpu-owner simulate shell -- pytest`. See docs/simulator.md of gpu-owner."""

import contextlib
import os
import subprocess

import pytest


class Machine:
    """A simulated machine. `gpu-owner simulate --help` lists the settings."""

    def set(self, *settings):
        """Changes it, also while programs use it: machine.set("gpu=1", "lost=on")"""
        subprocess.run(["gpu-owner", "simulate", "set", *settings], check=True)

    @contextlib.contextmanager
    def occupied(self, gpu, *options):
        """While it is entered, another program uses a GPU: with machine.occupied(0, "--memory=20GiB"): ..."""
        words = ["gpu-owner", "simulate", "occupy", str(gpu), *options]
        program = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            program.stdout.readline()  # "ready" and its PID
            yield program.pid
        finally:
            program.kill()
            program.communicate()


@pytest.fixture
def simulated(monkeypatch, tmp_path):
    """Gives a test a machine of its own: machine = simulated("h200x8")"""
    found = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    if not any(os.path.exists(os.path.join(path, "libnvidia-ml.so.1")) for path in found):
        pytest.fail("start the tests by `gpu-owner simulate --machine 2 shell -- pytest`")

    def machine(name):
        monkeypatch.setenv("GPU_OWNER_SIMULATE", str(name))
        monkeypatch.setenv("GPU_OWNER_SIMULATE_DIR", str(tmp_path / "gpus"))
        return Machine()

    return machine
