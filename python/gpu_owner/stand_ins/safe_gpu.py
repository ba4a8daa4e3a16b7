"""As safe-gpu is used."""

from __future__ import annotations

import logging
import os
import time
import weakref

from .. import environment
from ..claims import Claim, claim
from ..command import command_words
from ..criteria import criteria_words, parameters_called
from ..cuda import cuda_devices
from ..environment import form_of_names, holdings
from ..errors import NoDriverError
from .gpu_scheduler import free_gpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Optional

    from ..criteria import Command


def get_free_gpus(*, command: Optional[Command] = None, **criteria: Any) -> List[str]:
    """As safe-gpu's: the numbers of the GPUs that a claim could have now, as strings."""
    return [str(index) for index in sorted({gpu.index for gpu in free_gpus(command_words(command), criteria_words(**criteria))})]


def pytorch_placeholder(device_no: int) -> Any:
    """A tiny tensor of PyTorch's on a CUDA device."""
    import torch

    return torch.zeros(1, device=f"cuda:{device_no}")


def tensorflow_placeholder(device_no: int) -> Any:
    """A tiny tensor of TensorFlow's on a CUDA device."""
    import tensorflow

    with tensorflow.device(f"GPU:{device_no}"):
        return tensorflow.constant([1.0])


class PytorchPlaceholder:
    """As safe-gpu's: makes a tiny tensor of PyTorch's on a CUDA device."""

    def __init__(self, logger: Any = None) -> None:
        self.logger = logger or logging.getLogger()

    def __call__(self, device_no: int) -> Any:
        return pytorch_placeholder(device_no)

    def release(self, placeholder: Any) -> None:
        self.logger.info("PyTorch keeps its CUDA context until the process ends")


class TensorflowPlaceholder:
    """As safe-gpu's: makes a tiny tensor of TensorFlow's on a CUDA device."""

    def __init__(self, logger: Any = None) -> None:
        self.logger = logger or logging.getLogger()

    def __call__(self, device_no: int) -> Any:
        return tensorflow_placeholder(device_no)

    def release(self, placeholder: Any) -> None:
        self.logger.info("TensorFlow keeps its CUDA context until the process ends")


class PyCudaPlaceholder:
    """As safe-gpu's: makes a context of PyCUDA's on a CUDA device."""

    def __init__(self, logger: Any = None) -> None:
        self.logger = logger or logging.getLogger()

    def __call__(self, device_no: int) -> Any:
        import pycuda.driver

        pycuda.driver.init()
        return pycuda.driver.Device(device_no).make_context()

    def release(self, placeholder: Any) -> None:
        placeholder.detach()
        self.logger.info("Released a CUDA context")


# safe-gpu's name for "nvidia-smi fails", for programs that go on without a GPU then.
NvidiasmiError = NoDriverError


class GPUOwner:
    """
    As safe-gpu's: `GPUOwner(2)`. Fails with a RuntimeError if too few GPUs are free. The GPUs are released by `release_gpus()`, or when
    the process ends, and not when nothing refers to the object any more. CUDA_VISIBLE_DEVICES has numbers.

    placeholder_fn(device_no): if given, it is called with each CUDA ordinal, and what it returns is kept; otherwise a small process
    keeps the GPUs visibly taken. debug_sleep: seconds before these calls. Other keyword parameters are those of `claim`.
    """

    def __init__(
        self,
        nb_gpus: int = 1,
        placeholder_fn: Optional[Callable[[int], Any]] = None,
        logger: Any = None,
        debug_sleep: float = 0.0,
        **options: Any,
    ) -> None:
        self.logger = logger or logging.getLogger()
        self.debug_sleep = debug_sleep
        self.placeholder_fn = placeholder_fn
        self.devices_taken: List[int] = []
        self.placeholders: List[Any] = []
        kept = "keep" if placeholder_fn is None else "auto"
        self.claim: Optional[Claim] = None
        self.logger.info("acquiring lock")
        if nb_gpus == 0:
            self.logger.info("lock acquired")
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
            self.logger.info("Set CUDA_VISIBLE_DEVICES=")
            self.logger.info("lock released")
            return
        with parameters_called(count="nb_gpus"):
            self.claim = made = _dropped_owners_claim(nb_gpus) or claim(
                nb_gpus, **{"wait": False, "placeholder": kept, "visible_devices": form_of_names("index"), **options}
            )
        made._holding.kept, made._owner = made, weakref.ref(self)
        self.logger.info("lock acquired")
        try:
            gpus = list(made)
            self.devices_taken = _numbers_in_job(made)
            self.logger.info(f"Set CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']}")
            # The lease keeps the GPUs from here on, with or without placeholders: others needn't wait for these.
            self.logger.info("lock released")
            time.sleep(debug_sleep)
            if placeholder_fn is not None:
                for gpu in gpus:
                    self.placeholders.append(placeholder_fn(int(gpu)))
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Releases the placeholders and the GPUs."""
        placeholders, self.placeholders = self.placeholders, []
        let_go = getattr(self.placeholder_fn, "release", None)
        try:
            for placeholder, index in zip(placeholders, self.devices_taken):
                self.logger.info(f"Releasing placeholder on CUDA device: {index}")
                if let_go is not None:
                    let_go(placeholder)
        finally:
            placeholders.clear()
            if self.claim is not None:
                self.claim.release()

    release_gpus = release


def _numbers_in_job(made: Claim) -> List[int]:
    """
    Numbers that mean the claimed GPUs in other processes of the job, where CUDA counts the job's GPUs; outside of a job, those of
    nvidia-smi. Scripts print them and pass them on.
    """
    shown = (environment.before.get("CUDA_VISIBLE_DEVICES") or "") if os.environ.get("GPU_OWNER_JOB") else ""
    entries = [entry.strip() for entry in shown.split(",")]
    return [next((entries.index(name) for name in device.names if name in entries), device.index) for device in made._holding.devices]


def _dropped_owners_claim(count: int) -> Optional[Claim]:
    """The claim of an owner that nothing refers to. Once CUDA runs, the process can have no other GPUs than these."""
    if cuda_devices() is not None:
        for kept in [one.kept for one in holdings if one.kept is not None]:
            if kept._owner is not None and kept._owner() is None and len(kept) == count and kept.held:
                return kept
    return None


gpu_owner: Optional[GPUOwner] = None


def claim_gpus(
    nb_gpus: int = 1,
    placeholder_fn: Optional[Callable[[int], Any]] = None,
    logger: Any = None,
    debug_sleep: float = 0.0,
    **options: Any,
) -> None:
    """As safe-gpu's: a `GPUOwner` that lasts as long as the process, or until `release_gpus()` (in `gpu_owner.gpu_owner`)."""
    global gpu_owner
    gpu_owner = GPUOwner(nb_gpus, placeholder_fn, logger, debug_sleep, **options)


def release_gpus() -> None:
    """As safe-gpu's: releases the GPUs of `claim_gpus()`."""
    if gpu_owner is not None:
        gpu_owner.release()
