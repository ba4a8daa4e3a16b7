"""CUDA in this process. Nothing here loads or initialises it."""

from __future__ import annotations

import os
import re
import sys

from .errors import CUDAInitializedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional

_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED
_STUB_LIBRARY = 34  # CUDA_ERROR_STUB_LIBRARY


def cuda_devices() -> Optional[List[str]]:
    """
    The devices that CUDA shows to this process, in its order, as the digits of their UUIDs; None: it isn't initialised, and will
    still read CUDA_VISIBLE_DEVICES. Loads and initialises nothing.
    """
    given = os.environ.get("GPU_OWNER_CUDA_LIBRARY")
    if not given and not _is_mapped(b"libcuda.so"):  # to import ctypes takes longer
        return [] if _torch_initialized() else None
    try:
        import ctypes
    except ImportError:
        return [] if _torch_initialized() else None
    names = [given, "libcuda.so.1"]
    for name in names:
        if not name:
            continue
        try:
            cuda = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            count = ctypes.c_int()
            result = cuda.cuDeviceGetCount(ctypes.byref(count))
        except (OSError, AttributeError):
            continue  # not loaded
        if result in (_NOT_INITIALIZED, _STUB_LIBRARY):
            continue
        devices = []
        for ordinal in range(count.value if result == 0 else 0):
            digits = _cuda_uuid(cuda, ordinal)
            if digits is None:
                return []
            devices.append(digits)
        return devices
    return [] if _torch_initialized() else None


def _is_mapped(library: bytes) -> bool:
    try:
        with open("/proc/self/maps", "rb") as file:
            return library in file.read()
    except OSError:
        return True


def _cuda_uuid(cuda: Any, ordinal: int) -> Optional[str]:
    import ctypes

    uuid = (ctypes.c_ubyte * 16)()
    device = ctypes.c_int()
    if cuda.cuDeviceGet(ctypes.byref(device), ordinal) != 0:
        return None
    for name in ("cuDeviceGetUuid_v2", "cuDeviceGetUuid"):  # the older one tells a MIG instance's parent
        try:
            if getattr(cuda, name)(uuid, device) == 0:
                return bytes(uuid).hex()
        except AttributeError:
            continue
    return None


def _torch_initialized() -> bool:
    """Where libcuda isn't what PyTorch uses (ROCm, a statically linked driver)."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        return bool(cuda is not None and cuda.is_initialized())
    except Exception:  # a module that is only half imported
        return False


def import_torch() -> Any:
    """PyTorch, where it is installed."""
    try:
        return __import__("torch")
    except Exception:  # an import that fails here fails in a program that needs it, too
        return None


def digits_of(uuid: str) -> str:
    return re.sub("^(GPU|MIG)-", "", uuid).replace("-", "").lower()  # a Jetson's has no prefix


def _suspects() -> str:
    known = ("torch", "tensorflow", "jax", "cupy", "pycuda", "numba", "paddle")
    loaded = [name for name in known if name in sys.modules]
    return f" (loaded here: {', '.join(loaded)})" if loaded else ""


def initialized_error() -> CUDAInitializedError:
    return CUDAInitializedError(
        f"CUDA was initialised in this process before the claim{_suspects()}, and no longer reads CUDA_VISIBLE_DEVICES. Claim first, "
        "then use what uses CUDA: importing is no problem, but torch.cuda.is_available() is use. In a notebook, restart the kernel "
        "and claim in the first cell. Or start the program with `gpu-owner run`."
    )


def refuse_after_fork() -> None:
    """A child that was forked after PyTorch initialised CUDA can't use it."""
    is_in_bad_fork = getattr(getattr(sys.modules.get("torch"), "cuda", None), "_is_in_bad_fork", None)
    if is_in_bad_fork is not None and is_in_bad_fork():
        raise CUDAInitializedError(
            "CUDA was initialised before this process was forked, and can't be used in it. Fork before CUDA is used, or start processes "
            "with multiprocessing.get_context('spawn') or gpu_owner.Executor."
        )
