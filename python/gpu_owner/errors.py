"""The errors of this package."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


class GPUOwnerError(RuntimeError):
    """An error: what went wrong and what to do. `code` is as in gpu-owner's documentation, `exit_code` the command's (or None)."""

    code = "ERR_INTERNAL"

    def __init__(self, message: str, exit_code: Optional[int] = None, code: Optional[str] = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        if code is not None:
            self.code = code


class GPUUnavailableError(GPUOwnerError):
    """Not enough GPUs are free now; the message has the reason for each."""

    code = "ERR_GPU_UNAVAILABLE"


class WaitTimeoutError(GPUUnavailableError, TimeoutError):
    """Not enough GPUs came free within the time given by `wait`, or a job didn't end. The class is a built-in TimeoutError, too."""

    code = "ERR_TIMEOUT"


class NoDriverError(GPUOwnerError):
    """There is no NVIDIA driver here, or it fails."""

    code = "ERR_NO_DRIVER"


class InstallationError(GPUOwnerError):
    """This gpu-owner is in an environment that a tool deletes later (`uvx`, `pipx run`), and can't claim GPUs."""

    code = "ERR_INSTALLATION"


class UsageError(GPUOwnerError, ValueError):
    """A parameter isn't valid, or asks for more than this machine has."""

    code = "ERR_INVALID_ARGUMENT"


class CUDAInitializedError(GPUOwnerError):
    """CUDA already runs in this process, and no longer reads CUDA_VISIBLE_DEVICES."""

    code = "ERR_CUDA_INITIALIZED"


class CommandNotFoundError(GPUOwnerError):
    """The command `gpu-owner`, or the Node.js that it needs, wasn't found."""

    code = "ERR_COMMAND_NOT_FOUND"


class NoTaskError(GPUOwnerError):
    """This program isn't run as a task of an experiment, or its task can't be read."""

    code = "ERR_NO_TASK"


CLASSES = {
    "ERR_INVALID_ARGUMENT": UsageError,
    "ERR_NO_DRIVER": NoDriverError,
    "ERR_DRIVER": NoDriverError,
    "ERR_UNSUPPORTED_PLATFORM": NoDriverError,
    "ERR_INSTALLATION": InstallationError,
    "ERR_GPU_UNAVAILABLE": GPUUnavailableError,
    "ERR_TIMEOUT": WaitTimeoutError,
    "ERR_CUDA_INITIALIZED": CUDAInitializedError,
    "ERR_COMMAND_NOT_FOUND": CommandNotFoundError,
}
# For a failed program that starts gpu-owner (npx, a shell), which reports no code.
EXIT_CODES = {
    64: "ERR_INVALID_ARGUMENT",
    69: "ERR_NO_DRIVER",
    71: "ERR_SYSTEM",
    73: "ERR_LOCK_DIRECTORY",
    75: "ERR_GPU_UNAVAILABLE",
    77: "ERR_NOT_PERMITTED",
    78: "ERR_CONFIGURATION",
    126: "ERR_COMMAND_NOT_FOUND",
    127: "ERR_COMMAND_NOT_FOUND",
    130: "ERR_ABORTED",
}

for _class in list(globals().values()):  # tracebacks name an error as users do
    if isinstance(_class, type) and issubclass(_class, GPUOwnerError):
        _class.__module__ = __package__
