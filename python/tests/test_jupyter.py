"""The Jupyter kernel, started as JupyterLab and VS Code start it, on simulated machines."""

import os
import pathlib
import unittest

from test_executor import SITE
from test_gpu_owner import COMMAND, OnMachine
from test_submitit import lacks

CLIENT = """
import ctypes, os, subprocess, sys, time
import gpu_owner
from jupyter_client.manager import KernelManager

def texts(until=None):
    found = []
    while True:
        message = client.get_iopub_msg(timeout=30)
        kind, content = message["header"]["msg_type"], message["content"]
        found.append(content.get("text") or content.get("ename") or "")
        if kind == "status" and content["execution_state"] == "idle" or until and until in found[-1]:
            return "".join(found).strip()

def run(code):
    client.execute(code)
    return texts()

def held():
    return [gpu.index for gpu in gpu_owner.status() if gpu.state == "leased"]

HELD = "print(len([gpu for gpu in gpu_owner.status() if gpu.state == 'leased']), flush=True)"  # in a cell: no idle time

def soon(is_so):
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)

gpu_owner.jupyter.install(gpus=2, idle="2s", memory=None)
manager = KernelManager(kernel_name="gpu-owner-2")
manager.start_kernel(stderr=subprocess.DEVNULL)
client = manager.client()
client.start_channels()
client.wait_for_ready(timeout=30)
"""


@unittest.skipIf(lacks("ipykernel", "jupyter_client"), lacks("ipykernel", "jupyter_client"))
class Kernel(OnMachine):
    machine = "2"

    def test_a_kernel_claims_for_its_first_cell_and_gives_back(self):
        source = CLIENT + (
            """
print("ready", held())
client.execute("x = 1")
print(texts(until="waiting").splitlines()[0])
manager.interrupt_kernel()
print(texts().splitlines()[-1], held())
input()
print(run("import ctypes, os, time, gpu_owner; x = 5; print(os.environ['CUDA_VISIBLE_DEVICES'].count('GPU-'))"))
soon(lambda: not held())
print(texts(until="claims GPUs"))
client.execute(f"{HELD}; ctypes.CDLL(os.environ['SIMULATED_CUDA']).cuInit(0); print(x); time.sleep(600)")
print(texts(until="5").split())
manager.interrupt_kernel()
print(texts().splitlines()[-1])
print(texts(until="lost").partition(" ends")[0])
soon(lambda: not manager.is_alive() and not held())
manager.restart_kernel()
client.wait_for_ready(timeout=30)
print(held(), run(f"import gpu_owner; {HELD}; print('x' in globals())").split())
manager.shutdown_kernel()
soon(lambda: not held())
print("free")
            """
        )
        path = os.path.join(self.directory, "client.py")
        pathlib.Path(path).write_text(source)
        own = {name: os.path.join(self.directory, name.lower()) for name in ("JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")}
        with self.occupied():
            script = self.start_words([*SITE, path], {**own, "GPU_OWNER_COMMAND": str(COMMAND)})
            lines = [script.line() for _ in range(3)]
        script.go()
        code, out, err = script.end()
        self.assertEqual(code, 0, err + out)
        self.assertEqual(
            lines + out.splitlines(),
            [
                "ready [0]",
                "gpu-owner: waiting for 2 GPUs, 1st in the queue:",
                "KeyboardInterrupt [0]",
                "2",
                "gpu-owner: no cell has run for 2s, so the GPUs of this kernel are free again. The next cell claims GPUs.",
                "['2', '5']",
                "KeyboardInterrupt",
                "gpu-owner: no cell has run for 2s, so the GPUs of this kernel are free again. CUDA ran, so the kernel",
                "[] ['2', 'False']",
                "free",
            ],
        )


if __name__ == "__main__":
    unittest.main()
