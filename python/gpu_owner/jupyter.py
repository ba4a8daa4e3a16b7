"""
A Jupyter kernel with GPUs of its own: `gpu_owner.jupyter.install(gpus=1, idle="1h")` adds it to the list of kernels.

Jupyter gives a kernel 60 seconds to start. So the kernel starts without GPUs, and claims them when its first cell is run: that cell says
what it waits for, and can be interrupted.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys

from .claims import claim
from .cuda import cuda_devices
from .errors import GPUOwnerError, UsageError
from .machine import status
from .messages import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Union

    from .claims import Claim

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_LOOK_S = 30.0  # how often a kernel looks whether it is idle, at least
_CLAIM = "__import__('gpu_owner.jupyter').jupyter._kernel.claim_gpus()"
_kernel: Any = None


def install(
    gpus: int = 1,
    idle: Union[None, float, str] = None,
    *,
    name: Optional[str] = None,
    display_name: Optional[str] = None,
    prefix: Optional[str] = None,
    **options: Any,
) -> str:
    """
    Adds a kernel to Jupyter's list: this Python, with GPUs of its own. Returns the directory of its kernelspec.

    gpus: how many. idle: seconds or '1h', after which a kernel gives its GPUs back if no cell has run meanwhile. If CUDA runs in it by
    then, it ends for that. name, display_name: of the kernel. prefix: for all users of this environment (sys.prefix); by default, the
    kernel is yours only. Other parameters are those of `claim`.
    """
    try:
        from ipykernel.kernelspec import write_kernel_spec
        from jupyter_client.kernelspec import KernelSpecManager
    except ImportError as error:
        raise UsageError(f"this needs ipykernel in the environment of {sys.executable}: {error}. pip install ipykernel") from error
    _seconds(idle)
    words = json.dumps({"gpus": gpus, "idle": idle, "options": options})
    label = f"Python {sys.version_info[0]}, {gpus} GPU{'s' if gpus != 1 else ''}"
    argv = [sys.executable, "-m", "gpu_owner.jupyter", words, "-f", "{connection_file}"]
    path = write_kernel_spec(overrides={"argv": argv, "display_name": display_name or label})
    try:
        where = {"user": True} if prefix is None else {"prefix": prefix}
        return str(KernelSpecManager().install_kernel_spec(path, name or f"gpu-owner-{gpus}", **where))
    finally:
        shutil.rmtree(path)


def _seconds(idle: Union[None, float, str]) -> float:
    if idle is None:
        return float("inf")
    found = re.match(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)\Z", idle) if isinstance(idle, str) else None
    seconds = float(found.group(1)) * _UNITS[found.group(2)] if found else idle
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and seconds > 0:
        return seconds
    raise UsageError(f"idle: {idle!r} is not a duration; use seconds, or a string such as '1h'")


def _run(settings: Dict[str, Any]) -> None:
    import threading
    import time

    from ipykernel.ipkernel import IPythonKernel
    from ipykernel.kernelapp import IPKernelApp

    idle = _seconds(settings["idle"])

    class Kernel(IPythonKernel):  # type: ignore[misc]
        claimed: Optional[Claim] = None
        running = 0

        def __init__(self, **named: Any) -> None:
            super().__init__(**named)
            global _kernel
            _kernel = self
            self.lock = threading.RLock()  # held while GPUs change
            self.since = time.monotonic()
            if idle < float("inf"):
                threading.Thread(target=self.look, daemon=True).start()

        async def do_execute(self, code: str, silent: bool, *args: Any, **named: Any) -> Any:
            with self.lock:
                self.running += 1
            try:
                if not silent and (self.claimed is None or not self.claimed.held):
                    # As a cell of its own: an error, and an interrupt, are shown as those of a cell.
                    reply = await super().do_execute(_CLAIM, False, store_history=False)
                    if reply["status"] != "ok":
                        return reply
                return await super().do_execute(code, silent, *args, **named)
            finally:
                with self.lock:
                    self.running -= 1
                    self.since = time.monotonic()

        def claim_gpus(self) -> None:
            self.claimed = claim(settings["gpus"], **settings["options"])

        def is_used(self, uuids: List[str]) -> bool:
            """Whether the GPUs work, which a thread of the notebook may have them do."""
            try:
                return any(gpu.utilization_percent for gpu in status() if gpu.raw["uuid"] in uuids)
            except GPUOwnerError:
                return False

        def look(self) -> None:
            while True:
                time.sleep(min(_LOOK_S, idle / 4))
                with self.lock:
                    if self.claimed is None or self.running > 0 or time.monotonic() - self.since < idle:
                        continue
                    if self.claimed.held and self.is_used([gpu.uuid for gpu in self.claimed]):
                        self.since = time.monotonic()
                        continue
                    told = f"gpu-owner: no cell has run for {settings['idle']}, so the GPUs of this kernel are free again."
                    if cuda_devices() is None:
                        self.claimed.release()
                        self.claimed = None
                        show(f"{told} The next cell claims GPUs.\n")
                    else:
                        show(f"{told} CUDA ran, so the kernel ends, and its variables are lost.\n")
                        sys.stderr.flush()
                        time.sleep(0.5)  # until the message is sent
                        os._exit(0)

    IPKernelApp.launch_instance(kernel_class=Kernel)


if __name__ == "__main__":
    import gpu_owner.jupyter  # the one that cells see

    gpu_owner.jupyter._run(json.loads(sys.argv.pop(1)))
