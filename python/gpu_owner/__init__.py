"""Exclusive use of NVIDIA GPUs on a shared machine, from Python.

    import gpu_owner

    with gpu_owner.claim(2) as gpus:               # waits until two GPUs are free
        model.to(f"cuda:{gpus[0]}")                # CUDA sees these two, and no other

Claim before anything initialises CUDA. The GPUs are released at the end of the `with` block, by `gpus.release()`, or when
this process ends, however it ends (`kill -9` included). Needs the command `gpu-owner`; nothing but the standard library
otherwise. Memory is in bytes or '20GiB', power in watts, utilization in percent, durations in seconds or '10m'.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .claims import Claim as Claim
    from .claims import claim as claim
    from .claims import limit_memory as limit_memory
    from .errors import CommandNotFoundError as CommandNotFoundError
    from .errors import CUDAInitializedError as CUDAInitializedError
    from .errors import GPUOwnerError as GPUOwnerError
    from .errors import GPUUnavailableError as GPUUnavailableError
    from .errors import InstallationError as InstallationError
    from .errors import NoDriverError as NoDriverError
    from .errors import NoTaskError as NoTaskError
    from .errors import UsageError as UsageError
    from .errors import WaitTimeoutError as WaitTimeoutError
    from .executor import Executor as Executor
    from .gpus import GPU as GPU
    from .jobs import Job as Job
    from .jobs import submit as submit
    from .machine import GPUStatus as GPUStatus
    from .machine import status as status
    from .stand_ins.gpu_lock import lock_gpu as lock_gpu
    from .stand_ins.gpu_scheduler import GPUScheduler as GPUScheduler
    from .stand_ins.gpu_scheduler import cleanup_stale_locks as cleanup_stale_locks
    from .stand_ins.gpu_scheduler import find_free_gpus as find_free_gpus
    from .stand_ins.gpu_scheduler import get_gpu_info as get_gpu_info
    from .stand_ins.gpu_scheduler import get_gpu_memory_usage as get_gpu_memory_usage
    from .stand_ins.gpu_scheduler import get_gpu_names as get_gpu_names
    from .stand_ins.gpu_scheduler import get_gpu_power_usage as get_gpu_power_usage
    from .stand_ins.gpu_scheduler import get_gpu_utilization as get_gpu_utilization
    from .stand_ins.gpu_scheduler import get_lock_path as get_lock_path
    from .stand_ins.gpu_scheduler import get_total_num_gpus as get_total_num_gpus
    from .stand_ins.gpu_scheduler import is_gpu_locked as is_gpu_locked
    from .stand_ins.safe_gpu import GPUOwner as GPUOwner
    from .stand_ins.safe_gpu import NvidiasmiError as NvidiasmiError
    from .stand_ins.safe_gpu import PyCudaPlaceholder as PyCudaPlaceholder
    from .stand_ins.safe_gpu import PytorchPlaceholder as PytorchPlaceholder
    from .stand_ins.safe_gpu import TensorflowPlaceholder as TensorflowPlaceholder
    from .stand_ins.safe_gpu import claim_gpus as claim_gpus
    from .stand_ins.safe_gpu import get_free_gpus as get_free_gpus
    from .stand_ins.safe_gpu import pytorch_placeholder as pytorch_placeholder
    from .stand_ins.safe_gpu import release_gpus as release_gpus
    from .stand_ins.safe_gpu import tensorflow_placeholder as tensorflow_placeholder
    from .tasks import Task as Task
    from .tasks import report as report
    from .tasks import result as result
    from .tasks import task as task
    from .worker_thread import WorkerDiedError as WorkerDiedError

__version__ = "0.2.0"
# As the program was started: claims may be made later, and change them.
initial_variables = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")}

_MODULES = {
    "claims": "Claim claim limit_memory",
    "errors": (
        "CUDAInitializedError CommandNotFoundError GPUOwnerError GPUUnavailableError InstallationError NoDriverError "
        "NoTaskError UsageError WaitTimeoutError"
    ),
    "executor": "Executor",
    "gpus": "GPU",
    "jobs": "Job submit",
    "machine": "GPUStatus status",
    "stand_ins.gpu_lock": "lock_gpu",
    "stand_ins.gpu_scheduler": (
        "GPUScheduler cleanup_stale_locks find_free_gpus get_gpu_info get_gpu_memory_usage get_gpu_names "
        "get_gpu_power_usage get_gpu_utilization get_lock_path get_total_num_gpus is_gpu_locked"
    ),
    "stand_ins.safe_gpu": (
        "GPUOwner NvidiasmiError PyCudaPlaceholder PytorchPlaceholder TensorflowPlaceholder claim_gpus get_free_gpus "
        "pytorch_placeholder release_gpus tensorflow_placeholder"
    ),
    "worker_thread": "WorkerDiedError",
    "tasks": "Task report result task",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = sorted(_HOMES)

if not TYPE_CHECKING:

    def __getattr__(name):
        """Imports what is used, when it is used: `import gpu_owner` is to cost nearly nothing."""
        from importlib import import_module

        if name == "gpu_owner":  # safe-gpu's variable, which changes
            return import_module(".stand_ins.safe_gpu", __name__).gpu_owner
        if name == "jupyter":
            return import_module(".jupyter", __name__)
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
        return value


def __dir__() -> "list[str]":
    return sorted({*globals(), *__all__})
