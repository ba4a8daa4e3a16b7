"""Exclusive use of NVIDIA GPUs on a shared machine, from Python.

    import gpu_owner

    with gpu_owner.claim(2) as gpus:               # waits until two GPUs are free
        model.to(f"cuda:{gpus[0]}")                # CUDA sees these two, and no other

Claim before anything initialises CUDA. The GPUs are released at the end of the `with` block, by `gpus.release()`, or when
this process ends, however it ends (`kill -9` included). Needs the command `gpu-owner`; nothing but the standard library
otherwise. Memory is in bytes or '20GiB', power in watts, utilization in percent, durations in seconds or '10m'.
"""

import atexit
import codecs
import collections.abc
import contextlib
import functools
import importlib
import json
import logging
import math
import operator
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
    Union,
    cast,
)

__version__ = "0.2.0"
__all__ = [
    "CUDAInitializedError",
    "Claim",
    "CommandNotFoundError",
    "GPU",
    "GPUOwner",
    "GPUOwnerError",
    "GPUScheduler",
    "GPUStatus",
    "GPUUnavailableError",
    "InstallationError",
    "Job",
    "Lease",
    "NoDriverError",
    "NoTaskError",
    "NvidiasmiError",
    "Process",
    "PyCudaPlaceholder",
    "PytorchPlaceholder",
    "Task",
    "TensorflowPlaceholder",
    "UsageError",
    "WaitTimeoutError",
    "claim",
    "claim_gpus",
    "cleanup_stale_locks",
    "find_free_gpus",
    "get_free_gpus",
    "get_gpu_info",
    "get_gpu_memory_usage",
    "get_gpu_names",
    "get_gpu_power_usage",
    "get_gpu_utilization",
    "get_lock_path",
    "get_total_num_gpus",
    "is_gpu_locked",
    "limit_memory",
    "lock_gpu",
    "pytorch_placeholder",
    "release_gpus",
    "report",
    "result",
    "status",
    "submit",
    "task",
    "tensorflow_placeholder",
]

Size = Union[int, float, str]
Selector = Union[int, str, Iterable[Union[int, str]]]
Command = Union[str, Sequence[str]]
Path = Union[str, "os.PathLike[str]"]
Jobs = Union[int, str, "Job", Iterable[Union[int, str, "Job"]]]

if TYPE_CHECKING:
    _SequenceOfGPUs = Sequence["GPU"]
    _MappingOfValues = Mapping[str, Any]
else:  # Python 3.8 can't subscript these.
    _SequenceOfGPUs = collections.abc.Sequence
    _MappingOfValues = collections.abc.Mapping

_GIB = 1024**3
_MIB = 1024**2

# --------------------------------------------------------------------------------------------------------------------
# Errors


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


_CLASSES = {
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
_EXIT_CODES = {
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


def _error(exit_code: int, output: str, command: Sequence[str], count: str = "count", hidden: str = "") -> GPUOwnerError:
    message = output.strip()
    if message.startswith(_ERROR):
        error = json.loads(message.splitlines()[0])["error"]
        code, message = error["code"], error["message"]
    else:
        code = _EXIT_CODES.get(exit_code, "ERR_INTERNAL")
        if message.startswith(_PREFIX):
            message = message[len(_PREFIX) :]
    message = _explain_hidden(message, hidden)
    kind = _CLASSES.get(code, GPUOwnerError)
    message = _in_python(message, count) or f"'{shlex.join(command)}' ended with {_describe_exit(exit_code)} and said nothing"
    if kind is CommandNotFoundError and "GPU_OWNER_NODE" not in message:
        message = _NOT_FOUND.format(message)
    return kind(message, exit_code, code)


def _explain_hidden(text: str, hidden: str) -> str:
    return _HIDDEN.sub(lambda _: hidden, text) if hidden else text


def _describe_exit(exit_code: int) -> str:
    return f"exit code {exit_code}" if exit_code >= 0 else f"signal {-exit_code}"


# Besides those of `_criteria`.
_OPTIONS = (
    "placeholder",
    "visible_devices",
    "lock_timeout",
    "memory",
    "urgent",
    "preemptible",
    "idle",
    "wait",
    "name",
    "note",
    "after_ok",
    "after",
    "output",
    "notify",
    "signal",
    "grace",
    "timeout",
)


def _in_python(message: str, count: str) -> str:
    """Options as they are called here: `--max-power` is `max_power`."""
    message = re.sub(r"(?m)(?<![\w-])-n(?= |:)", count, message)
    message = re.sub(r"(?<![\w-])--for(?![\w-])", "time_limit", message)
    options = "|".join((*_CRITERIA, *_OPTIONS)).replace("_", "-")
    return re.sub(rf"(?<![\w-])--({options})(?![\w-])", lambda match: match.group(1).replace("-", "_"), message)


# --------------------------------------------------------------------------------------------------------------------
# The command

_PREFIX = "gpu-owner: "
# The command says this of GPUs that CUDA_VISIBLE_DEVICES leaves out, also where this module has set that for `hold`.
_HIDDEN = re.compile(r"not in the CUDA_VISIBLE_DEVICES that was inherited|the CUDA_VISIBLE_DEVICES that was inherited leaves out [\w ]+")
_ERROR = '{"error":'  # with GPU_OWNER_ERRORS=json


def _command(command: Optional[Command]) -> List[str]:
    """
    The words that start gpu-owner: `command`, else GPU_OWNER_COMMAND, the one that this file was installed with (the PATH of a
    notebook's kernel lacks its environment's programs), `gpu-owner` in PATH, or one in a usual place.
    """
    if os.name == "nt":
        raise GPUOwnerError(
            "GPUs can be claimed on Linux only. On Windows, run the program in WSL 2 (docs/machines.md); task() and result() work here",
            code="ERR_UNSUPPORTED_PLATFORM",
        )
    given = command if command is not None else os.environ.get("GPU_OWNER_COMMAND") or None
    if given is not None:
        words = [os.fspath(given)] if isinstance(given, os.PathLike) else given
        if isinstance(words, str):
            words = [words] if os.path.exists(words) else shlex.split(words)
        words = [os.fspath(word) for word in words]
        if not words:
            raise UsageError("command: it is empty; use '/usr/local/bin/gpu-owner' or ['npx', 'gpu-owner']")
        return words
    here = os.path.dirname(os.path.abspath(__file__))
    # PREFIX/lib/pythonX.Y/site-packages
    prefix = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    installed = os.path.join(prefix, "bin", "gpu-owner")
    if os.path.exists(os.path.join(prefix, "lib", "gpu-owner")) and os.access(installed, os.X_OK):
        return [installed]
    found = shutil.which("gpu-owner")
    if found is not None:
        return [found]
    beside = os.path.join(os.path.dirname(here), "bin", "gpu-owner.cjs")
    usual = ("/usr/local/bin/gpu-owner", "/opt/gpu-owner/bin/gpu-owner.cjs", os.path.expanduser("~/.local/bin/gpu-owner"))
    for path in (beside, *usual):
        if os.access(path, os.X_OK):
            return [path]
    raise CommandNotFoundError(_NOT_FOUND.format("The command 'gpu-owner' isn't in PATH"))


_NOT_FOUND = (
    "{}. Install it (uv tool install gpu-owner), or say where it is: the environment variable "
    "GPU_OWNER_COMMAND=/path/to/bin/gpu-owner.cjs, or claim(command=...); a list such as ['npx', 'gpu-owner'] will do. "
    "It needs Node.js in PATH, or GPU_OWNER_NODE with its path."
)


def _own_command() -> str:
    """The name that others see as the holder: this program, and not its `gpu-owner hold`."""
    words = getattr(sys, "orig_argv", None) or [sys.executable or "python", *sys.argv]
    program = " ".join([os.path.basename(words[0]), *words[1:]]).replace("\0", " ")
    return f"{program[:400]} (pid {os.getpid()})"


def _cannot_start(command: Sequence[str], error: OSError) -> CommandNotFoundError:
    return CommandNotFoundError(_NOT_FOUND.format(f"'{command[0]}' can't be started: {error.strerror}"))


def _list(value: Selector, name: str) -> List[str]:
    if isinstance(value, (int, str)):
        value = [value]
    try:
        # A GPU of a claim is a number of CUDA's, not of the machine, and an instance of MIG has that of its GPU.
        words = [one.uuid if isinstance(one, (GPU, GPUStatus)) and one.uuid else str(one) for one in value]
    except TypeError:
        raise UsageError(f"{name}: {value!r} is neither an index, a name or UUID, nor a list of them") from None
    if not words:
        raise UsageError(f"{name}: the list is empty; leave it out to allow all")
    return words


def _number(value: Union[int, float, str]) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) and math.isfinite(value) else str(value)


def _criteria(
    min_free_memory: Optional[Size] = None,
    max_used_memory: Optional[Size] = None,
    allow_processes: bool = False,
    max_power: Optional[Union[float, str]] = None,
    max_utilization: Optional[Union[float, str]] = None,
    max_temperature: Optional[Union[float, str]] = None,
    allow_unknown: bool = False,
    devices: Optional[Selector] = None,
    exclude: Optional[Selector] = None,
    exclude_names: Optional[Selector] = None,
    force: bool = False,
    lock_dir: Optional[str] = None,
    simulate: Optional[Union[int, str]] = None,
) -> List[str]:
    args = []
    for name, value in (
        ("min-free-memory", min_free_memory),
        ("max-used-memory", max_used_memory),
        ("max-power", max_power),
        ("max-utilization", max_utilization),
        ("max-temperature", max_temperature),
    ):
        if value is not None:
            args.append(f"--{name}={_number(value)}")
    for name, selectors in (("devices", devices), ("exclude", exclude), ("exclude-names", exclude_names)):
        if selectors is not None:
            args += [f"--{name}={word}" for word in _list(selectors, name.replace("-", "_"))]
    for name, flag in (("allow-processes", allow_processes), ("allow-unknown", allow_unknown), ("force", force)):
        if flag:
            args.append(f"--{name}")
    for name, text in (("lock-dir", lock_dir), ("simulate", simulate)):
        if text is not None:
            args.append(f"--{name}={text}")
    return args


_CRITERIA = tuple(name for name in _criteria.__annotations__ if name != "return")


def _criteria_among(parameters: Mapping[str, Any]) -> List[str]:
    """The criteria of a call that has all of them as parameters. `parameters` are its locals()."""
    return _criteria(**{name: parameters[name] for name in _CRITERIA})


def _wait_option(wait: Union[None, bool, float, str]) -> str:
    if wait is None or wait is True:
        return "--wait"
    if wait is False:
        return "--no-wait"
    if isinstance(wait, str):
        return f"--wait={wait}"
    if isinstance(wait, (int, float)) and wait >= 0:
        if math.isinf(wait):
            return "--wait"
        return f"--wait={round(wait * 1000)}ms" if wait > 0 else "--no-wait"
    raise UsageError(f"wait: {wait!r} is not valid; use True, False, a number of seconds, or a string such as '10m'")


def _count(count: Any, name: str = "count") -> int:
    try:
        if not isinstance(count, bool):
            return operator.index(count)
    except TypeError:
        pass
    raise UsageError(f"{name}: {count!r} is not a number of GPUs; use 1, 2, …")


def _duration(value: Union[float, str], name: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf:
        return f"{int(value)}s" if value == int(value) else f"{math.ceil(value * 1000)}ms"
    raise UsageError(f"{name}: {value!r} is not a duration; use seconds, or a string such as '10m'")


class _Messages:
    """
    Reads what the command says on standard error. Messages are shown as they come, except the last one of a command that fails:
    that becomes the exception. Whether it is the last is known a moment later.
    """

    PAUSE = 0.1

    def __init__(self, hidden: str = "", note: str = "") -> None:
        self._hidden = hidden
        self._note = note  # for the first message about a wait
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""  # from the beginning of the last message on
        self._shown = 0  # how much of it is shown

    @property
    def pending(self) -> bool:
        return len(self._text) > self._shown and not self._text.startswith(_ERROR)

    def feed(self, data: bytes, final: bool = False) -> None:
        self._text += self._decoder.decode(data, final)
        start = max(self._text.rfind("\n" + beginning) for beginning in (_PREFIX, _ERROR)) + 1
        if start > 0:
            self._tell(self._text[self._shown : start])
            self._text, self._shown = self._text[start:], max(0, self._shown - start)

    def show(self) -> None:
        if self.pending:
            self._tell(self._text[self._shown :])
            self._shown = len(self._text)

    def _tell(self, text: str) -> None:
        _show(_explain_hidden(text, self._hidden))
        if self._note and text.startswith(f"{_PREFIX}waiting"):
            _show(self._note)
            self._note = ""

    def take(self) -> str:
        """The last message, which is not shown any more."""
        self._shown = len(self._text)
        return self._text


def _show(text: str) -> None:
    if text and sys.stderr is not None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):
            pass  # standard error can't be written


# --------------------------------------------------------------------------------------------------------------------
# CUDA in this process

_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED
_STUB_LIBRARY = 34  # CUDA_ERROR_STUB_LIBRARY


def _cuda_devices() -> Optional[List[str]]:
    """
    The devices that CUDA shows to this process, in its order, as the digits of their UUIDs; None: it isn't initialised, and will
    still read CUDA_VISIBLE_DEVICES. Loads and initialises nothing.
    """
    try:
        import ctypes
    except ImportError:
        return [] if _torch_initialized() else None
    names = [os.environ.get("GPU_OWNER_CUDA_LIBRARY"), "libcuda.so.1"]
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


def _digits(uuid: str) -> str:
    return re.sub("^(GPU|MIG)-", "", uuid).replace("-", "").lower()  # a Jetson's has no prefix


def _suspects() -> str:
    known = ("torch", "tensorflow", "jax", "cupy", "pycuda", "numba", "paddle")
    loaded = [name for name in known if name in sys.modules]
    return f" (loaded here: {', '.join(loaded)})" if loaded else ""


# --------------------------------------------------------------------------------------------------------------------
# The environment: CUDA_VISIBLE_DEVICES is the union of the living claims' GPUs, in the order in which they came. The last
# one restores what was there at first, unless other code has changed it meanwhile. Where all of them are wide, it stays as it
# was, and CUDA counts as nvidia-smi does.

_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
# The claim that CUDA_VISIBLE_DEVICES comes from, for claims in children of this process.
_MARK = "GPU_OWNER_PYTHON_CLAIM"

_state = threading.RLock()
_first = threading.RLock()  # while a call with `once` claims
_living = []  # type: List["_Holding"]
_ever = set()  # type: set[str]  # digits of the UUIDs of all GPUs that claims have shown to this process
_first_shown = ""  # GPUs and place of the claim that was the first to show some to this process
_given = set()  # type: set[str]  # numbers and UUIDs of wide claims, which programs write to CUDA_VISIBLE_DEVICES themselves
_before = {}  # type: Dict[str, Optional[str]]
_set = {}  # type: Dict[str, Optional[str]]


def _read_variables() -> Dict[str, Optional[str]]:
    return {name: os.environ.get(name) for name in _VARIABLES}


def _write_variables(variables: Dict[str, Optional[str]]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


_initial = _read_variables()


def _inherited_variables() -> Dict[str, Optional[str]]:
    """The variables that limit the next claim: without those that the program itself has made of an earlier claim's numbers."""
    present = _read_variables()
    value = present["CUDA_VISIBLE_DEVICES"]
    own = value and value != _initial["CUDA_VISIBLE_DEVICES"] and _given.issuperset(value.replace(" ", "").split(","))
    return dict(_initial) if own else present


def _union() -> Tuple[List[str], List[str]]:
    """UUIDs of all living claims' GPUs, and what CUDA_VISIBLE_DEVICES calls them."""
    uuids, entries = [], []  # type: List[str], List[str]
    for living in _living:
        for device, entry in zip(living.devices, living.entries):
            if device.uuid not in uuids:
                uuids.append(device.uuid)
                entries.append(entry)
    return uuids, entries


def _all_wide() -> bool:
    return all(living.wide for living in _living)


def _update_environment() -> None:
    global _set
    if _all_wide():
        _set = {"CUDA_VISIBLE_DEVICES": _before["CUDA_VISIBLE_DEVICES"], "CUDA_DEVICE_ORDER": _order_of_numbers()}
    else:
        order = "PCI_BUS_ID" if _living[-1].by_index else _before["CUDA_DEVICE_ORDER"]
        _set = {"CUDA_VISIBLE_DEVICES": ",".join(_union()[1]), "CUDA_DEVICE_ORDER": order}
    _write_variables(_set)
    names = [name for living in _living for device in living.devices for name in device.names]
    # Children that get CUDA's numbers of this process as theirs: sitecustomize.py of a job translates them.
    job = os.environ.get("GPU_OWNER_JOB")
    for living in _living if job else ():
        if living.scheduled and not living.numbered:
            names += [f"{ordinal}@{job}={device.uuid}" for ordinal, device in zip(_ordinals(living), living.devices)]
    os.environ[_MARK] = f"{os.getpid()}:{_started(os.getpid())}:{','.join(names)}"


def _ordinals(holding: "_Holding") -> List[int]:
    """CUDA counts as in what it read when it was initialised, or else will count as CUDA_VISIBLE_DEVICES is now."""
    cuda, uuids, wide = _cuda_devices() or [], _union()[0], _all_wide()
    return [
        cuda.index(_digits(device.uuid)) if _digits(device.uuid) in cuda else device.index if wide else uuids.index(device.uuid)
        for device in holding.devices
    ]


def _order_of_numbers() -> Optional[str]:
    """CUDA_DEVICE_ORDER with which children count as this process does: CUDA may already have counted in its own order here."""
    cuda = _cuda_devices() or []
    devices = [device for living in _living for device in living.devices]
    own = all(_digits(device.uuid) not in cuda or cuda.index(_digits(device.uuid)) == device.index for device in devices)
    return "PCI_BUS_ID" if own else _before["CUDA_DEVICE_ORDER"]


def _join(made: "_Holding") -> None:
    global _before, _first_shown
    if not _living:
        _before = _inherited_variables()
        _before[_MARK] = os.environ.get(_MARK)
    _living.append(made)
    if made.wide:
        _given.update(name for device in made.devices for name in device.names)
    elif not _shows_others(_cuda_devices()):
        _ever.update(_digits(device.uuid) for device in made.devices)
        _first_shown = _first_shown or f"{made.describe_gpus()}, claimed at {made.place}"
    _update_environment()


def _shows_others(bound: Optional[List[str]]) -> bool:
    """Whether CUDA runs and shows GPUs to this process that no claim has shown to it."""
    return bound is not None and not (bound and _ever.issuperset(bound))


def _leave(made: "_Holding") -> None:
    global _before, _set
    if made not in _living:
        return
    _living.remove(made)
    ours = _read_variables() == _set
    if _living:
        if ours:
            _update_environment()
        return
    if ours:
        _write_variables(_before)
    else:
        _write_variables({_MARK: _before[_MARK]})
    _before, _set = {}, {}


def _started(pid: int) -> Optional[str]:
    """When a process was started, in the kernel's ticks; None: there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return None


def _refuse_in_children() -> None:
    """A child's CUDA_VISIBLE_DEVICES allows nothing but what its parent holds: it would wait for its own parent."""
    pid, _, rest = os.environ.get(_MARK, "").partition(":")
    started, _, names = rest.partition(":")
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if not pid.isdigit() or int(pid) == os.getpid() or not set(devices.split(",")) <= set(names.split(",")):
        return
    if _started(int(pid)) != started:
        return
    raise GPUUnavailableError(
        f"process {pid}, from which this one was started, claimed GPUs before ({devices}), and they are what CUDA shows here: use "
        "them without a claim. If this is a child of multiprocessing that runs the main module again, put the claim under "
        "`if __name__ == '__main__':`. If a launcher such as Lightning's runs the script again, start it with `gpu-owner run` in "
        "place of the claim. A child that is to claim for itself must be started without CUDA_VISIBLE_DEVICES and "
        f"{_MARK} in its environment."
    )


# --------------------------------------------------------------------------------------------------------------------
# Forks. A forked child has copies of the pipes that keep claims alive; it must not keep them open, and it owns no claim.

_fork = threading.RLock()


def _before_fork() -> None:
    _fork.acquire()


def _after_fork_in_parent() -> None:
    _fork.release()


def _after_fork_in_child() -> None:
    global _fork, _state, _first, _before, _set
    _fork, _state, _first = threading.RLock(), threading.RLock(), threading.RLock()
    for holder in list(_holders):
        holder.disown()
    _holders.clear()
    del _living[:]  # CUDA_VISIBLE_DEVICES stays: the child may use what its parent has
    _ever.clear()
    _given.clear()
    _before, _set = {}, {}


def _warn_before_exec(name: str) -> None:
    """Has os.exec* say that it ends the claims of this process: their pipes are not passed on."""
    execute = getattr(os, name)

    @functools.wraps(execute)
    def call(*args: Any, **named: Any) -> None:
        with _state:
            lost = [f"{one.describe_gpus()} (claimed at {one.place})" for one in _living if not one.is_told_of_exec]
            for one in _living:
                one.is_told_of_exec = True
        if lost:
            _show(
                f"gpu-owner: os.{name} ends this process's claim of {', '.join(lost)}: the program that it starts has no GPU. Start that "
                "with subprocess.run, or this one with `gpu-owner run`.\n"
            )
        execute(*args, **named)

    setattr(os, name, call)


for _call in ("execv", "execve"):  # the others call these
    _warn_before_exec(_call)


class _Holder:
    """`gpu-owner hold` and the pipe that keeps it going."""

    def __init__(self, command: Sequence[str], args: Sequence[str], env: Dict[str, str], hidden: str = "", note: str = "") -> None:
        self.owner = os.getpid()
        self._hidden = hidden
        self.command = command
        words = [*command, "hold", f"--as={_own_command()}", *args]
        self.messages = _Messages(hidden, note)
        self._input = -1
        self._lock = threading.RLock()
        # No fork in between, or the child would have descriptors that it never closes.
        with _fork:
            theirs, self._input = os.pipe()  # neither is inherited by programs
            _holders.add(self)
            try:
                # A session of its own: Ctrl-C at the terminal, or the interrupt of a notebook's cell, is not for it.
                self.process = subprocess.Popen(
                    words,
                    stdin=theirs,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    env=env,
                    start_new_session=True,
                )
            except BaseException as error:
                self._close_input()
                _holders.discard(self)
                if isinstance(error, OSError):
                    raise _cannot_start(command, error) from error
                raise
            finally:
                os.close(theirs)

    def answer(self) -> Dict[str, Any]:
        """Waits until the GPUs are held. Raises what the command says if it fails."""
        assert self.process.stdout is not None and self.process.stderr is not None
        out, err = self.process.stdout.fileno(), self.process.stderr.fileno()
        poll = select.poll()
        poll.register(out, select.POLLIN)
        poll.register(err, select.POLLIN)
        answer = b""
        while True:
            ready = dict(poll.poll(1000 * (_Messages.PAUSE if self.messages.pending else 1)))
            if not ready:
                self.messages.show()
            if err in ready:
                data = os.read(err, 65536)
                self.messages.feed(data)
                if not data:
                    poll.unregister(err)
            if out in ready:
                data = os.read(out, 65536)
                answer += data
                lines = [line for line in answer.split(b"\n")[:-1] if line.startswith(b"{")]
                if lines:
                    self.drain()
                    return dict(json.loads(lines[0].decode()))
                if not data:
                    break
            if not ready and self.process.poll() is not None:
                break
        code = self.process.wait()
        self.drain(show=False)
        raise _error(code, self.messages.take(), self.command, hidden=self._hidden)

    def drain(self, show: bool = True) -> None:
        """Reads what the command has said on standard error; doesn't wait for more."""
        stream = self.process.stderr
        if stream is None or stream.closed:
            return
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLIN)
        while poll.poll(0):
            data = os.read(stream.fileno(), 65536)
            if not data:
                break
            self.messages.feed(data)
        if show:
            self.messages.show()

    def is_running(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def end(self) -> None:
        """Ends the hold, and returns when the GPUs are free. Does nothing the second time, or in a forked child."""
        if self.owner != os.getpid():
            return
        with self._lock:
            self._close_input()
            try:
                # The signal, too: a child that was forked past Python may still have the pipe open.
                self._signal(signal.SIGTERM)
                self._wait(5)
            finally:
                self._signal(signal.SIGKILL)
                self._wait(5)  # not longer: a process that hangs in the driver can't end
                _holders.discard(self)
                self.drain()
                self._close_outputs()

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        pause = 0.0005
        while self.process.poll() is None and time.monotonic() < end:
            time.sleep(pause)
            pause = min(2 * pause, 0.02)

    def _signal(self, number: int) -> None:
        # Not after it has ended: the number could be another process's by now.
        if self.process.poll() is None:
            try:
                os.killpg(self.process.pid, number)  # with `npx` or a shell, `hold` is a child of what was started
            except ProcessLookupError:
                pass

    def _close_input(self) -> None:
        descriptor, self._input = self._input, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _close_outputs(self) -> None:
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def disown(self) -> None:
        """In a forked child: what is the parent's is let go, without a trace."""
        self._lock = threading.RLock()
        self._close_input()
        process = getattr(self, "process", None)
        if process is not None:
            self._close_outputs()
            process.returncode = 0  # no child of this process: nothing to wait for, nothing to warn of


_holders = set()  # type: set[_Holder]

if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


# --------------------------------------------------------------------------------------------------------------------
# Claims


class GPU(int):
    """
    A claimed GPU. As a number it is the CUDA ordinal in this process: f"cuda:{gpu}" is right.

    index, uuid, name: as in nvidia-smi. instance: of a MIG instance, which of its GPU's it is; else None.
    """

    index: int
    uuid: str
    name: str
    instance: Optional[int]

    def __new__(cls, ordinal: int, index: int, uuid: str, name: str, instance: Optional[int] = None) -> "GPU":
        self = super().__new__(cls, ordinal)
        self.index, self.uuid, self.name, self.instance = index, uuid, name, instance
        return self

    def __getnewargs__(self) -> Tuple[Any, ...]:
        return (int(self), self.index, self.uuid, self.name, self.instance)


class _ScheduledGPU(GPU):
    """
    One whose number is not the machine's, as CUDA's view is limited. As text it is its UUID: CUDA_VISIBLE_DEVICES of a child is made
    of texts, and there the number would be another GPU. f"cuda:{gpu}" is right, too.
    """

    def __str__(self) -> str:
        return self.uuid

    def __format__(self, form: str) -> str:
        return int.__format__(int(self), form)


class _Device(NamedTuple):
    index: int  # type: ignore[assignment]  # hides the method of tuples
    uuid: str
    name: str
    instance: Optional[int]

    @property
    def names(self) -> List[str]:
        """The names of the GPU in CUDA_VISIBLE_DEVICES."""
        return [self.uuid] if self.instance is not None else [str(self.index), self.uuid]


class _Holding:
    """The GPUs that this process holds by one claim, whether or not anything refers to the `Claim`."""

    def __init__(self, holder: _Holder, answer: Dict[str, Any], place: "_Place") -> None:
        self.holder = holder
        self.place = place
        self.visible_devices = str(answer["visibleDevices"])
        self.entries = self.visible_devices.split(",")
        self.by_index = self.entries[0].isdigit()
        # The share of each GPU, in bytes; None: all of it.
        self.memory = cast(Optional[int], answer.get("memory"))
        self.devices = [_Device(int(one["index"]), str(one["uuid"]), str(one["name"]), one.get("instance")) for one in answer["devices"]]
        self.ordinals = list(range(len(self.devices)))
        # Whether CUDA_VISIBLE_DEVICES stays as it is without the claim, and whether CUDA's numbers mean the same GPUs in children then.
        self.wide = self.numbered = False
        # Whether it is a GPUScheduler's that shows all.
        self.scheduled = False
        self.origin = _Origin(None, None)
        self.request = []  # type: List[str]
        self.claim = None  # type: Optional[weakref.ref[Claim]]
        # Whether the user knows that nothing refers to the claim, and that exec ends it.
        self.is_told = self.is_told_of_exec = False
        # The claim, where the module itself keeps it: it is to last as long as the process.
        self.kept = None  # type: Optional[Claim]

    def is_held(self) -> bool:
        with _state:
            if self not in _living:
                return False
        self.holder.drain()
        return self.holder.is_running()

    def describe_gpus(self) -> str:
        return ", ".join(f"GPU {device.index}" for device in self.devices)


class _Origin(NamedTuple):
    """The name of a claim, or the notebook's cell that made it and in which execution. A later one of the same origin replaces it."""

    name: Optional[str]
    cell: Optional[Tuple[str, int]]

    def is_replaced_by(self, later: "_Origin") -> bool:
        if later.name is not None:
            return self.name == later.name
        if self.cell is None or later.cell is None:
            return False
        return self.cell[0] == later.cell[0] and self.cell[1] != later.cell[1]

    def __str__(self) -> str:
        return "this cell" if self.name is None else f"the name {self.name!r}"


class _Place(NamedTuple):
    """The line of a claim, for messages."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def _caller() -> _Place:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals is globals():
        frame = frame.f_back
    return _Place(frame.f_code.co_filename, frame.f_lineno)


def _warn_of_unused(holding: _Holding) -> None:
    """A claim that nothing refers to: the program could have meant to end it, or may think that it has ended."""
    if holding.holder.owner != os.getpid() or not holding.is_held() or _cuda_devices() is not None:
        return
    holding.is_told = True
    warnings.warn_explicit(
        f"nothing refers to this claim any more, and it keeps {holding.describe_gpus()} until the process ends. Keep what claim() "
        "returns in a variable as long as the GPU is used, and release() it, or use a `with` block.",
        RuntimeWarning,
        holding.place.file,
        holding.place.line,
    )


class Claim(_SequenceOfGPUs):
    """
    GPUs that this process holds: a sequence of `GPU`, and a context manager. The claim lasts until `release()`, the end of the
    `with` block, or the end of the process; not until nothing refers to it any more.

    visible_devices: what CUDA_VISIBLE_DEVICES calls them. memory: the share of each GPU's memory, in bytes; None: all of it.
    """

    # Whether it may be made when CUDA runs already and shows other GPUs, too. Then it is one of these.
    _late = False
    # Whether it is to leave CUDA's view as it is, where CUDA's numbers are the machine's then.
    _wide = False
    _once = False

    def __init__(self) -> None:
        self._inside = []  # type: List[contextlib.ExitStack]
        self._finalizer = None  # type: Any
        self._owner = None  # type: Optional[weakref.ref[GPUOwner]]  # safe-gpu's

    def _hold(self, holding: _Holding) -> None:
        self._holding = holding
        holding.claim = weakref.ref(self)
        if self._finalizer is not None:
            self._finalizer.detach()
        self._finalizer = weakref.finalize(self, _warn_of_unused, holding)
        self._finalizer.atexit = False

    @property
    def visible_devices(self) -> str:
        return self._holding.visible_devices

    @property
    def memory(self) -> Optional[int]:
        return self._holding.memory

    def release(self) -> None:
        """
        Releases the GPUs, and returns when they are free. CUDA must not be used on them afterwards. Does nothing the second
        time, or in a forked child: the claim is its parent's.
        """
        holding = self._holding
        with _state:
            self._number()
            _leave(holding)
            holding.kept = None
        holding.holder.end()

    @property
    def held(self) -> bool:
        """Whether the claim stands: not released, its `gpu-owner hold` not killed. False in a forked child."""
        return self._holding.is_held()

    def _number(self) -> List[int]:
        holding = self._holding
        with _state:
            if holding in _living:
                holding.ordinals = _ordinals(holding)
            return holding.ordinals

    def _gpus(self) -> List[GPU]:
        kind = _ScheduledGPU if self._wide and not self._holding.numbered else GPU
        return [kind(ordinal, *device) for ordinal, device in zip(self._number(), self._holding.devices)]

    def __getitem__(self, key: Any) -> Any:
        return self._gpus()[key]

    def __len__(self) -> int:
        return len(self._holding.devices)

    def __eq__(self, other: Any) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __enter__(self) -> "Claim":
        if self._holding.holder.owner == os.getpid() and not self.held:
            raise GPUUnavailableError(
                "this claim has ended: it was released, its time is over (`limits.for`), or its `gpu-owner hold` was killed. Claim again"
            )
        inside = contextlib.ExitStack()
        try:
            wide = self._holding.wide
            torch = getattr(_import_torch() if wide else sys.modules.get("torch"), "cuda", None)
            # Where CUDA shows other GPUs as well, a plain "cuda" would be one of them.
            if torch is not None and (wide or _cuda_devices()) and torch.is_available():
                inside.enter_context(torch.device(int(self[0])))
        except BaseException:
            self.release()  # Python doesn't call __exit__ then
            raise
        self._inside.append(inside)
        return self

    def __exit__(self, *_: Any) -> None:
        self._inside.pop().close()
        if not self._inside and not self._once:
            self.release()

    def __reduce__(self) -> Tuple[Any, ...]:
        return (list, (self._gpus(),))  # for other processes it is a list of GPUs: they own no claim

    def __str__(self) -> str:
        return str(self._gpus())

    def __repr__(self) -> str:
        gpus = ", ".join(f"cuda:{gpu} = GPU {gpu.index} ({gpu.name})" for gpu in self._gpus())
        return f"<Claim of {gpus}{'' if self.held else '; not held'}>"


def _import_torch() -> Any:
    """PyTorch, where it is installed."""
    try:
        return importlib.import_module("torch")
    except Exception:  # an import that fails here fails in a program that needs it, too
        return None


# Names that others use for options of claim() and submit().
_MEANT = {
    "claim": {
        "the number of GPUs is the first argument: claim(2)": "gpus gpu n num num_gpus ngpus gpu_count n_gpus number",
        "write wait='10m'": "timeout max_wait wait_timeout",
        "write wait=False": "no_wait nowait blocking block",
        "write min_free_memory='20GiB'": "mem min_memory vram free_memory gpu_memory",
        "write devices=…": "device gpu_ids ids device_ids",
    },
    "submit": {
        "write gpus=2": "count gpu n num num_gpus ngpus gpu_count n_gpus",
        "write time_limit='4h'": "timeout for_ time limit",
        "write min_free_memory='20GiB'": "mem min_memory vram free_memory gpu_memory",
        "write devices=…": "device gpu_ids ids device_ids",
        "write cwd=…": "directory chdir workdir",
    },
}
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _explains_options(function: _Function) -> _Function:
    """A TypeError for an option that there isn't says which one is meant."""
    name = function.__name__
    known = function.__code__.co_varnames[: function.__code__.co_argcount + function.__code__.co_kwonlyargcount]

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        for option in options:
            if option in known:
                continue
            import difflib

            near = difflib.get_close_matches(option, [each for each in known if not each.startswith("_")], 1)
            meant = [remedy for remedy, words in _MEANT[name].items() if option in words.split()]
            hint = meant[0] if meant else f"did you mean {near[0]}?" if near else f"help(gpu_owner.{name}) lists them"
            raise TypeError(f"{name}() has no option {option}; {hint}")
        return function(*args, **options)

    return cast(_Function, call)


@_explains_options
def claim(
    count: int = 1,
    *,
    wait: Union[None, bool, float, str] = True,
    memory: Optional[Size] = None,
    min_free_memory: Optional[Size] = None,
    max_used_memory: Optional[Size] = None,
    allow_processes: bool = False,
    max_power: Optional[Union[float, str]] = None,
    max_utilization: Optional[Union[float, str]] = None,
    max_temperature: Optional[Union[float, str]] = None,
    allow_unknown: bool = False,
    devices: Optional[Selector] = None,
    exclude: Optional[Selector] = None,
    exclude_names: Optional[Selector] = None,
    force: bool = False,
    placeholder: Optional[str] = None,
    visible_devices: Optional[str] = None,
    lock_dir: Optional[str] = None,
    lock_timeout: Union[None, float, str] = None,
    urgent: bool = False,
    simulate: Optional[Union[int, str]] = None,
    command: Optional[Command] = None,
    once: bool = False,
    name: Optional[str] = None,
    _made: Optional[Claim] = None,
) -> Claim:
    """
    Claims GPUs for this process and shows them to CUDA; use it before anything initialises CUDA.

        with claim(2, min_free_memory="20GiB") as gpus: ...
        gpus = claim()           # in a notebook; until gpus.release(), or the kernel's end

    count: how many; all or none.
    wait: True (default) until they are free; a number of seconds, or '10m': for at most that long; False: not at all.
    memory: '20GiB', '25%', or bytes: only so much of each GPU; others may have the rest. See limit_memory().
    min_free_memory, max_used_memory: '20GiB', or bytes (from 1 MiB on); max_used_memory="any": however much is in use.
    allow_processes: share with programs that run on the GPU without a claim.
    max_power: watts. max_utilization: percent. max_temperature: degrees Celsius. allow_unknown: accept those that the driver
        can't tell.
    devices, exclude: indices of nvidia-smi, UUIDs, names, '0-3', or a list of them. exclude_names: names only.
    force: skip health, thresholds and other programs; never leases of others.
    placeholder: 'auto' (default), 'keep' or 'none': how long a small process keeps the GPUs visibly taken.
    visible_devices: 'uuid' (default), or 'index' for software that expects numbers in CUDA_VISIBLE_DEVICES. While other claims
        of this process stand, theirs is the default.
    lock_dir: another lock directory. lock_timeout: how long to wait for another claim's decision, seconds or '2s' (default).
    urgent: be served before all others; for those whom the machine's configuration names.
    simulate: simulated GPUs, a number or a machine's name. command: how to start gpu-owner (see `GPU_OWNER_COMMAND`).
    once: for a process that runs several jobs one after the other, such as a worker of a pool. The first call claims, later ones
        return that claim. The claim lasts until release() or the end of the process, not until the end of a `with` block.
    name: this claim replaces the one of this process with the same name, if that stands; the same request keeps its GPUs. In a
        notebook, a cell that is run again replaces its earlier claims in the same way.

    While `claim` waits, it reports on sys.stderr what it waits for. The wait blocks the thread; an exception there
    (KeyboardInterrupt) ends it.

    Raises GPUUnavailableError (WaitTimeoutError), NoDriverError, UsageError (a ValueError), CUDAInitializedError,
    CommandNotFoundError, or else GPUOwnerError.
    All of them are RuntimeErrors. Nothing is held then.
    """
    made = Claim() if _made is None else _made
    made._once = once
    count = _count(count)
    args = [f"--gpus={count}", _wait_option(wait)]
    args += _criteria_among(locals())
    if memory is not None:
        args.append(f"--memory={memory}")
    if placeholder is not None:
        args.append(f"--placeholder={placeholder}")
    if urgent:
        args.append("--urgent")
    request = [*args, f"--visible-devices={visible_devices}"]
    form = _form() if visible_devices is None else visible_devices
    if form is not None:
        args.append(f"--visible-devices={form}")
    if lock_timeout is not None:
        if not isinstance(lock_timeout, str) and math.isfinite(lock_timeout):
            lock_timeout = f"{round(lock_timeout * 1000)}ms"
        args.append(f"--lock-timeout={lock_timeout}")
    words = _command(command)
    with _first if once else contextlib.nullcontext():
        earlier = _made_once(count) if once else None
        if earlier is not None:
            return earlier
        _refuse_in_children()
        origin = _Origin(name, _notebook_cell() if name is None and _made is None else None)
        kept = _replace_earlier(made, origin, request)
        if kept is not None:
            return kept
        _tell_of_unreferenced()
        where = _criteria(lock_dir=lock_dir, simulate=simulate)
        env, uses_cuda = _claimant_environment(made, count, words, where)
        if uses_cuda:  # contexts outlive a claim, and are no reason not to have a GPU again
            args.append(f"--claimant={os.getpid()}")
        holder = _Holder(words, args, env, _why_hidden(), _own_note())
        try:
            holding = _Holding(holder, holder.answer(), _caller())
            holding.scheduled = made._wide
            if made._wide:
                holding.numbered = _can_be_wide(holding, lambda: _snapshot(words, ["status", "--json", *where]))
            with _state:
                _refuse_mixture(holding)
                _refuse_late(holding, made._late)
                holding.numbered = holding.numbered and _all_wide()  # others may have limited what CUDA will see meanwhile
                holding.wide = holding.numbered or made._wide and _shows_others(_cuda_devices())
                _join(holding)
            holding.origin, holding.request = origin, request
            made._hold(holding)
            if once:
                holding.kept = made
            return made
        except BaseException:
            holder.end()
            raise


def limit_memory() -> Optional[int]:
    """
    Has PyTorch take no more of each GPU than this process's share of its memory: by `claim(memory=...)`, or by that of the job
    in which it runs (GPU_OWNER_MEMORY). More raises torch.OutOfMemoryError. The context of CUDA comes on top.

    Returns the bytes of a share; None, and limits nothing: this process has whole GPUs. Raises UsageError without PyTorch.
    """
    with _state:
        shares = {ordinal: one.memory for one in _living for ordinal in _ordinals(one)}
    text = os.environ.get("GPU_OWNER_MEMORY", "")
    job = int(text) if text.isdigit() else None
    if not any(shares.values()) and (shares or job is None):
        return None
    torch = _import_torch()
    if torch is None:
        raise UsageError("limit_memory: PyTorch can't be imported, and there is nothing else whose memory it could limit")
    limits = []
    for ordinal in range(torch.cuda.device_count()):
        share = shares.get(ordinal) if shares else job
        if share is None:
            continue
        total = torch.cuda.get_device_properties(ordinal).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, share / total), ordinal)
        limits.append(share)
    return min(limits, default=None)


def _can_be_wide(holding: _Holding, machine: Callable[[], List["GPUStatus"]]) -> bool:
    """Whether CUDA's numbers are the machine's, in this process and in its children, if CUDA_VISIBLE_DEVICES stays as it is."""
    with _state:
        outer = _before if _living else _inherited_variables()
        shown, order = outer["CUDA_VISIBLE_DEVICES"], outer["CUDA_DEVICE_ORDER"]
        if not _all_wide():
            return False
    gpus = machine()
    # CUDA shows one MIG instance only; whether it counts a GPU that doesn't answer isn't known.
    if any(gpu.instance is not None or not gpu.uuid or gpu.name is None for gpu in gpus):
        return False
    bound = _cuda_devices()
    if bound is not None:
        return shown is None and len(bound) == len(gpus)
    if shown is None:
        return True
    names = [word.strip() for word in shown.split(",")]
    by_bus = order == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) == 1
    return len(names) > max(device.index for device in holding.devices) and all(
        name == gpu.uuid or by_bus and name == str(gpu.index) for name, gpu in zip(names, gpus)
    )


def _notebook_cell() -> Optional[Tuple[str, int]]:
    """The cell of IPython or Jupyter that runs, as long as its text or its notebook doesn't change, and the number of its execution."""
    try:
        shell = sys.modules["IPython"].get_ipython()
        count = int(shell.execution_count)
        parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
        cell = parent.get("metadata", {}).get("cellId")
        frame = sys._getframe()  # type: Any
        while not cell and frame is not None:
            if frame.f_globals is shell.user_global_ns and frame.f_code.co_name == "<module>":
                cell = re.sub(r"-input-\d+-", "-input-", frame.f_code.co_filename)
            frame = frame.f_back
        return (str(cell), count) if cell else None
    except (KeyError, AttributeError, TypeError):
        return None  # no notebook, or one that is unlike those that are known


def _replace_earlier(made: Claim, origin: _Origin, request: List[str]) -> Optional[Claim]:
    """Ends the claims that this one replaces. If it asks for the same, the earlier one stays, and is returned."""
    with _state:
        earlier = [one for one in _living if one.origin.is_replaced_by(origin)]
    same = [one for one in earlier if one.request == request and one.is_held()][:1]
    for one in earlier:
        if one not in same:
            with _state:
                _leave(one)
            one.holder.end()
            _show(f"gpu-owner: released {one.describe_gpus()}, which {origin} had claimed at {one.place}.\n")
    for one in same:
        kept = one.claim() if one.claim is not None else None
        if kept is None:
            made._hold(one)
        _show(f"gpu-owner: {origin} has claimed {one.describe_gpus()} already, and keeps it.\n")
        return kept or made
    return None


def _tell_of_unreferenced() -> None:
    with _state:
        forgotten = [one for one in _living if one.kept is None and one.claim is not None and one.claim() is None and not one.is_told]
    for one in forgotten:
        one.is_told = True
        _show(
            f"gpu-owner: this process still holds {one.describe_gpus()}, claimed at {one.place}. Nothing refers to that claim any more, "
            "so it lasts until the process ends.\n"
        )


def _made_once(count: int) -> Optional[Claim]:
    """The claim that an earlier call with `once` has made, if it stands."""
    for earlier in [one.kept for one in _living if one.kept is not None and one.kept._once]:
        if not earlier.held:
            earlier.release()  # its `gpu-owner hold` was killed; CUDA_VISIBLE_DEVICES must not show its GPUs
        elif len(earlier) == count:
            return earlier
        else:
            raise UsageError(f"once: this process has claimed {len(earlier)} GPU(s) already, not {count}; release() that claim first")
    return None


def _form(default: Optional[str] = None) -> Optional[str]:
    """How CUDA_VISIBLE_DEVICES names GPUs: as it does already, where claims of this process stand."""
    with _state:
        return default if not _living else "index" if _living[-1].by_index else "uuid"


def _outer_environment() -> Dict[str, str]:
    """As if this process had claimed nothing: its own claims must not limit the next one."""
    env = dict(os.environ)
    env["GPU_OWNER_ERRORS"] = "json"
    env.pop(_MARK, None)
    with _state:
        outer = _before if _living else _inherited_variables()
    for name in _VARIABLES:
        env.pop(name, None)
    env.update({name: value for name, value in outer.items() if value is not None})
    return env


def _claimant_environment(made: Claim, count: int, command: Sequence[str], where: Sequence[str]) -> Tuple[Dict[str, str], bool]:
    """For `hold`, with the GPUs that CUDA shows here; and whether CUDA runs in this process."""
    env = _outer_environment()
    bound = _cuda_devices()
    if bound is None:
        return env, False
    # CUDA is bound to some GPUs for the life of this process.
    if not bound or _shows_others(bound) and not made._late:
        raise _initialized()
    known = {_digits(gpu.uuid): gpu for gpu in _snapshot(command, ["status", "--json", *where])}
    with _state:
        held = {_digits(device.uuid): device.index for living in _living for device in living.devices}
    left = [known[digits] for digits in bound if digits in known and digits not in held]
    if len(left) < count:
        names = ", ".join(f"GPU {held[digits]}" for digits in bound if digits in held)
        places = ", ".join(str(living.place) for living in list(_living))
        holds = f"; this process already holds {names} of them (claimed at {places}): use it, or release it first" if names else ""
        raise CUDAInitializedError(
            f"CUDA in this process is bound to {len(bound)} GPU(s) as long as the process lives{holds}. "
            "Claim as many as will be needed at once, before CUDA is used; in a notebook, restart the kernel."
        )
    env.pop("CUDA_DEVICE_ORDER", None)
    if all(re.match("(GPU|MIG)-", gpu.uuid) for gpu in left):
        env["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in left)
    else:  # CUDA_VISIBLE_DEVICES takes no UUID of a Jetson
        numbered = [gpu.uuid for gpu in known.values() if gpu.uuid and gpu.instance is None]
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        env["CUDA_VISIBLE_DEVICES"] = ",".join(str(numbered.index(gpu.uuid)) for gpu in left)
    return env, True


def _why_hidden() -> str:
    """The reason why a process can't have GPUs that CUDA doesn't show to it any more; empty: CUDA doesn't run."""
    if _cuda_devices() is None:
        return ""
    only = f" only {_first_shown}" if _first_shown else " other GPUs only"
    return f"CUDA runs in this process, and as long as it lives shows it{only}"


def _own_note() -> str:
    """A hint at the other claims of this process, for one that waits."""
    with _state:
        held = [f"{one.describe_gpus()} (claimed at {one.place})" for one in _living]
    return f"gpu-owner: this process itself holds {', '.join(held)}: release() what it doesn't need.\n" if held else ""


def _initialized() -> CUDAInitializedError:
    return CUDAInitializedError(
        f"CUDA was initialised in this process before the claim{_suspects()}, and no longer reads CUDA_VISIBLE_DEVICES. Claim first, "
        "then use what uses CUDA: importing is no problem, but torch.cuda.is_available() is use. In a notebook, restart the kernel "
        "and claim in the first cell. Or start the program with `gpu-owner run`."
    )


def _refuse_late(made: _Holding, late: bool) -> None:
    """Another thread may have initialised CUDA while this one waited."""
    bound = _cuda_devices()
    own = {_digits(device.uuid) for device in made.devices}
    if bound is not None and not (own <= set(bound) and (late or own | _ever >= set(bound))):
        raise _initialized()


def _refuse_mixture(made: _Holding) -> None:
    if _living and _living[-1].by_index != made.by_index:
        raise UsageError(
            "visible_devices: one claim of this process names GPUs by 'uuid' and another by 'index', but CUDA reads only one "
            "form; use the same for both."
        )


def _release_all() -> None:
    for made in reversed(list(_living)):
        try:
            with _state:
                _leave(made)
            made.holder.end()
        except Exception as error:  # the next one must be released all the same
            _show(f"gpu_owner: {error}\n")
    for holder in list(_holders):
        holder.end()


atexit.register(_release_all)


# --------------------------------------------------------------------------------------------------------------------
# Looking without claiming


class Process(NamedTuple):
    """A process on a GPU. type: 'compute' or 'graphics'; used_bytes: None where the driver doesn't tell."""

    pid: int
    type: str
    used_bytes: Optional[int]


class Lease(NamedTuple):
    """The holder of a GPU, as it described itself: for people, not for decisions.
    since, until (when its time limit ends it), idle_ends (when it is ended as its GPUs do nothing, unless they are used by then): as
    ISO 8601. preemptible: it gives way to requests that can't start otherwise.
    Unknown is None."""

    user: Optional[str]
    uid: Optional[int]
    pid: Optional[int]
    host: Optional[str]
    command: Optional[str]
    since: Optional[str]
    convention: Optional[str]
    until: Optional[str] = None
    preemptible: bool = False
    idle_ends: Optional[str] = None


class GPUStatus(int, _MappingOfValues):
    """
    A GPU of the machine. As a number it is its index in nvidia-smi, not an ordinal of CUDA's.

    instance: of a MIG instance, which of its GPU's it is; else None. Then `int` and `index` are those of the GPU.
    state: 'free', 'leased', 'shared', 'busy' or 'unavailable'; reason: why it isn't free. shares: the parts of its memory that are
    leased, as in `gpu-owner status --json`. suspect: what CUDA failed with there lately (code, name, since, seenBy), or None.
    Memory is in bytes, power in watts.
    Values that the driver can't tell are None. raw: the object of `gpu-owner status --json`.

    As a mapping it is what GPU Scheduler tells: gpu["gpu_id"], and the other keys of `get_gpu_info`.
    """

    def __new__(cls, raw: Dict[str, Any]) -> "GPUStatus":
        self = super().__new__(cls, raw["index"])
        self.raw = raw
        return self

    raw: Dict[str, Any]

    def __getnewargs__(self) -> Tuple[Any, ...]:
        return (self.raw,)

    def __bool__(self) -> bool:
        return True  # GPU 0 is one, too

    def __getitem__(self, key: str) -> Any:
        return self._as_scheduler()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._as_scheduler())

    def __len__(self) -> int:
        return len(self._as_scheduler())

    def _as_scheduler(self) -> Dict[str, Any]:
        return {
            "gpu_id": self.index,
            "name": self.name,
            "uuid": self.uuid,
            "memory_free": (self.memory_free or 0) // _MIB,
            "memory_used": (self.memory_used or 0) // _MIB,
            "memory_total": (self.memory_total or 0) // _MIB,
            "power_draw": float(self.power_watts or 0),
            "power_limit": float(self.power_limit_watts or 0),
            "utilization": self.utilization_percent or 0,
            "temperature": self.temperature_celsius,
            "state": self.state,
        }

    @property
    def index(self) -> int:
        return int(self)

    @property
    def instance(self) -> Optional[int]:
        return cast(Optional[int], self.raw.get("instance"))

    @property
    def uuid(self) -> str:
        return str(self.raw["uuid"])

    @property
    def name(self) -> Optional[str]:
        return cast(Optional[str], self.raw["name"])

    @property
    def state(self) -> str:
        return str(self.raw["state"])

    @property
    def reason(self) -> Optional[str]:
        return cast(Optional[str], self.raw["reason"])

    @property
    def memory_total(self) -> Optional[int]:
        return cast(Optional[int], self.raw["memory"]["totalBytes"])

    @property
    def memory_used(self) -> Optional[int]:
        return cast(Optional[int], self.raw["memory"]["usedBytes"])

    @property
    def memory_free(self) -> Optional[int]:
        return cast(Optional[int], self.raw["memory"]["freeBytes"])

    @property
    def power_watts(self) -> Optional[float]:
        return cast(Optional[float], self.raw["powerWatts"])

    @property
    def power_limit_watts(self) -> Optional[float]:
        return cast(Optional[float], self.raw["powerLimitWatts"])

    @property
    def utilization_percent(self) -> Optional[float]:
        return cast(Optional[float], self.raw["utilizationPercent"])

    @property
    def temperature_celsius(self) -> Optional[float]:
        return cast(Optional[float], self.raw["temperatureCelsius"])

    @property
    def memory_repair_pending(self) -> Optional[bool]:
        return cast(Optional[bool], self.raw.get("memoryRepairPending"))

    @property
    def processes(self) -> List[Process]:
        return [Process(one["pid"], one["type"], one["usedBytes"]) for one in self.raw["processes"] or []]

    @property
    def lease(self) -> Optional[Lease]:
        lease = self.raw["lease"]
        if lease is None:
            return None
        named: Dict[str, Any] = {**lease, "idle_ends": lease.get("idleEnds")}
        values: List[Any] = [named.get(field, Lease._field_defaults.get(field)) for field in Lease._fields]
        return Lease(*values)

    @property
    def shares(self) -> List[Dict[str, Any]]:
        return list(self.raw.get("shares", []))

    @property
    def suspect(self) -> Optional[Dict[str, Any]]:
        return cast(Optional[Dict[str, Any]], self.raw.get("suspect"))

    def __repr__(self) -> str:
        number = self.index if self.instance is None else f"{self.index}:{self.instance}"
        return f"<GPU {number}: {self.name}, {self.state}{f' ({self.reason})' if self.reason else ''}>"

    __str__ = int.__repr__
    __format__ = int.__format__


def status(
    *,
    min_free_memory: Optional[Size] = None,
    max_used_memory: Optional[Size] = None,
    allow_processes: bool = False,
    max_power: Optional[Union[float, str]] = None,
    max_utilization: Optional[Union[float, str]] = None,
    max_temperature: Optional[Union[float, str]] = None,
    allow_unknown: bool = False,
    devices: Optional[Selector] = None,
    exclude: Optional[Selector] = None,
    exclude_names: Optional[Selector] = None,
    force: bool = False,
    lock_dir: Optional[str] = None,
    simulate: Optional[Union[int, str]] = None,
    command: Optional[Command] = None,
) -> List[GPUStatus]:
    """All GPUs of the machine, each with who has it. Free means free for these criteria, those of `claim`. Takes nothing."""
    args = _criteria_among(locals())
    return _snapshot(_command(command), ["status", "--json", *args])


def _snapshot(command: Sequence[str], args: Sequence[str]) -> List[GPUStatus]:
    return [GPUStatus(raw) for raw in _json(command, args)]


def _json(command: Sequence[str], args: Sequence[str]) -> Any:
    output = _output(command, args)
    try:
        return json.loads(output.decode())
    except ValueError as error:
        raise GPUOwnerError(f"'{shlex.join([*command, *args])}' printed no JSON: is it gpu-owner?") from error


def _run(
    command: Sequence[str], args: Sequence[str], env: Optional[Dict[str, str]] = None, cwd: Optional[str] = None
) -> Tuple[int, bytes, _Messages]:
    """Runs the command to its end: its exit code, output, and messages."""
    try:
        done = subprocess.run(
            [*command, *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_outer_environment() if env is None else env,
            cwd=cwd,
        )
    except OSError as error:
        raise _cannot_start(command, error) from error
    messages = _Messages()
    messages.feed(done.stderr, final=True)
    return done.returncode, done.stdout, messages


def _output(
    command: Sequence[str],
    args: Sequence[str],
    env: Optional[Dict[str, str]] = None,
    cwd: Optional[str] = None,
    count: str = "count",
) -> bytes:
    """Runs the command to its end, and raises its error if it fails."""
    code, output, messages = _run(command, args, env, cwd)
    if code != 0:
        raise _error(code, messages.take(), command, count)
    messages.show()
    return output


def find_free_gpus(
    memory_free_threshold_gb: Optional[float] = 1,
    power_threshold_w: Optional[float] = None,
    utilization_threshold_percent: Optional[float] = 1,
    *,
    command: Optional[Command] = None,
    **criteria: Any,
) -> List[Dict[str, Any]]:
    """
    The GPUs that a claim could have now, as dictionaries of `get_gpu_info`. Another claim may take them first: only a claim reserves them.

    The first three parameters and their defaults are GPU Scheduler's (GiB, watts, percent; what the driver can't tell counts as 0).
    Other criteria are those of `claim`; what they say counts instead.
    """
    thresholds = _thresholds(memory_free_threshold_gb, power_threshold_w, utilization_threshold_percent, criteria)
    try:
        args = _criteria(**_bans({**thresholds, **criteria}, command))
    except TypeError as error:
        raise TypeError(str(error).replace("_criteria", "find_free_gpus")) from None
    return _by_gpu(_machine(lambda: _free(_command(command), args)))


def _free(command: Sequence[str], args: Sequence[str]) -> List[GPUStatus]:
    visible = _outer_environment().get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [gpu for gpu in _snapshot(command, ["status", "--json", *args]) if gpu.state == "free"]
    # Only the command knows which GPUs a batch system or a job allows: as many of them as it can find.
    for count in range(len(visible.split(",")), 0, -1):
        try:
            return _snapshot(command, ["find", "--json", f"--gpus={count}", *args])
        except (GPUUnavailableError, UsageError):
            continue
    return []


def get_free_gpus(*, command: Optional[Command] = None, **criteria: Any) -> List[str]:
    """As safe-gpu's: the numbers of the GPUs that a claim could have now, as strings."""
    return [str(index) for index in sorted({gpu.index for gpu in _free(_command(command), _criteria(**criteria))})]


def _thresholds(
    memory_gb: Optional[float], power_w: Optional[float], utilization: Optional[float], criteria: Mapping[str, Any]
) -> Dict[str, Any]:
    """
    GPU Scheduler's thresholds, as `claim` calls them, without those that needn't be checked. Values that the driver can't
    tell count as 0, as under WSL 2 and for MIG instances; not where `criteria`, which count instead, have limits of `claim`.
    """
    thresholds = {"allow_unknown": not {"max_power", "max_utilization", "max_temperature"} & set(criteria)}  # type: Dict[str, Any]
    if memory_gb is not None:
        size = _float("memory_free_threshold_gb", memory_gb) * _GIB
        thresholds["min_free_memory"] = f"{int(size)}B" if math.isfinite(size) else size
    if power_w is not None:
        thresholds["max_power"] = power_w
    if utilization is not None and not _float("utilization_threshold_percent", utilization) >= 100:
        thresholds["max_utilization"] = utilization
    return thresholds


def _float(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{name}: {value!r} is not a number; use 20, 2.5, or None to leave it out") from None


def _machine(look: Callable[[], List[GPUStatus]]) -> List[GPUStatus]:
    """Where there is no GPU, GPU Scheduler's functions answer with an empty list and a line in its log."""
    _number_as_the_driver()
    try:
        return look()
    except NoDriverError as error:
        _scheduler_log.error("%s", error)
        return []


_scheduler_log = logging.getLogger("gpu_scheduler")
_replaced = []  # type: List[Any]  # modules of GPU Scheduler that sitecustomize.py of a job has changed: what they ban stays banned


def _bans(criteria: Mapping[str, Any], command: Optional[Command] = None) -> Dict[str, Any]:
    """`criteria` with what BANNED_GPUS and BANNED_GPU_NAMES leave out. A number that the machine lacks bans nothing."""
    ids = {int(gpu) for module in _replaced for gpu in getattr(module, "BANNED_GPUS", None) or ()}
    names = {str(name) for module in _replaced for name in getattr(module, "BANNED_GPU_NAMES", None) or ()}
    banned = dict(criteria)
    if ids:
        ids &= {gpu.index for gpu in _snapshot(_command(command), ["status", "--json"])}
    for option, more in (("exclude", ids), ("exclude_names", names)):
        if more:
            given = criteria.get(option)
            banned[option] = [*([] if given is None else _list(given, option)), *sorted(more)]
    return banned


def get_gpu_info(**options: Any) -> List[Dict[str, Any]]:
    """
    A dictionary per GPU: gpu_id (as in nvidia-smi), name; memory_free, memory_used and memory_total in MiB (1024² bytes);
    power_draw and power_limit in watts, utilization in percent. Unknown is 0. Options are those of `status`.
    """
    return _by_gpu(_machine(lambda: status(**options)))


def _by_gpu(gpus: Iterable[GPUStatus]) -> List[Dict[str, Any]]:
    """GPU Scheduler's dictionaries in its order. GPU Scheduler knows whole GPUs only: memory of MIG instances is added up."""
    found = {}  # type: Dict[int, Dict[str, Any]]
    for gpu in sorted(gpus, key=lambda gpu: gpu.index):
        one = found.setdefault(gpu.index, dict(gpu))
        if one["uuid"] != gpu.uuid:
            for key in ("memory_free", "memory_used", "memory_total"):
                one[key] += gpu[key]
    return list(found.values())


def _columns(names: Sequence[str], options: Dict[str, Any]) -> List[Dict[str, Any]]:
    return [{name: gpu[name] for name in names} for gpu in get_gpu_info(**options)]


def get_gpu_memory_usage(**options: Any) -> List[Dict[str, Any]]:
    """gpu_id, memory_used, memory_total and memory_free (MiB) of each GPU."""
    return _columns(("gpu_id", "memory_used", "memory_total", "memory_free"), options)


def get_gpu_names(**options: Any) -> List[Dict[str, Any]]:
    """gpu_id and name of each GPU."""
    return _columns(("gpu_id", "name"), options)


def get_gpu_power_usage(**options: Any) -> List[Dict[str, Any]]:
    """gpu_id, power_draw and power_limit (watts) of each GPU."""
    return _columns(("gpu_id", "power_draw", "power_limit"), options)


def get_gpu_utilization(**options: Any) -> List[Dict[str, Any]]:
    """gpu_id and utilization (percent) of each GPU."""
    return _columns(("gpu_id", "utilization"), options)


def get_total_num_gpus(**options: Any) -> int:
    """How many GPUs the machine has. One that is divided into MIG instances counts once."""
    return len({gpu["gpu_id"] for gpu in get_gpu_info(**options)})


def is_gpu_locked(gpu_id: Union[int, str], **options: Any) -> bool:
    """Whether the GPU is held, here or with another tool whose locks count."""
    return any(gpu.state in ("leased", "shared") for gpu in _machine(lambda: status(**options)) if str(gpu.index) == str(gpu_id))


def get_lock_path(gpu_id: int) -> str:
    """GPU Scheduler's file for a GPU. A claim locks this file as well if its directory exists; locking only the file claims nothing."""
    return f"/tmp/gpu_locks/gpu_{gpu_id}.lock"


def cleanup_stale_locks() -> None:
    """Does nothing: a dead process holds no GPU."""


# --------------------------------------------------------------------------------------------------------------------
# Jobs in the background


class _State(str):
    """A text that may be called: `job.state == "running"` is right, and so is `job.state() == "running"`."""

    __slots__ = ()

    def __call__(self) -> str:
        return str(self)


def _job_number(value: Any) -> int:
    try:
        return int(value) if isinstance(value, str) else operator.index(value)
    except TypeError:
        raise UsageError(f"Job: {value!r} is not the number or the name of a job; use Job(12) or Job('train')") from None


class Job:
    """
    A job in the background: what `submit` returns, or `Job(12)` or `Job("train")` for one of this user's that exists. The
    methods ask the command each time.

    id: its number, or its name. simulate: its simulated machine, if it was submitted for one. command: as for `claim`.
    """

    def __init__(self, id: Union[int, str], *, simulate: Optional[Union[int, str]] = None, command: Optional[Command] = None) -> None:
        self._words = _command(command)
        self._where = _criteria(simulate=simulate)
        self.id = self._named(id) if isinstance(id, str) and not re.match(r"[0-9]{1,9}\Z", id) else _job_number(id)

    def _named(self, name: str) -> int:
        """The number of a job of this machine by its name."""
        if not re.match(r"(?![0-9]+_[0-9]+\Z)[^\s:,/-][^\s:,/]*\Z", name):
            raise UsageError(f"Job: {name!r} is not the number or the name of a job of this machine; use Job(12) or Job('train')")
        [found] = _json(self._words, ["jobs", "--json", *self._where, "--", name])
        return _job_number(found["id"])

    def wait(self, timeout: Union[None, float, str] = None) -> int:
        """
        Waits until it has ended, and returns its exit code: 128 + N if signal N ended it, 124 at its time limit, 143 if it was
        cancelled before it started, 137 if it was lost. timeout: seconds or '10m'; then it raises WaitTimeoutError, and the job goes on.
        """
        limit = [] if timeout is None else [f"--timeout={_duration(timeout, 'timeout')}"]
        code, _, messages = _run(self._words, ["wait", str(self.id), *limit, *self._where])
        message = messages.take()
        if message.startswith(_ERROR) or code < 0:  # `wait` was killed, and the job goes on
            raise _error(code, message, self._words)
        if code in (126, 127):
            self.info()  # raises if it is the command that can't be run, and not the job's
        return code

    def cancel(self, grace: Union[None, float, str] = None) -> None:
        """
        Ends it: SIGTERM to all its processes, and SIGKILL after `grace` (seconds or '1m'; 10 s). Returns when it has ended, also if it
        had before. Raises GPUOwnerError if something of it can't be ended.
        """
        limit = [] if grace is None else [f"--grace={_duration(grace, 'grace')}"]
        code, _, messages = _run(self._words, ["cancel", str(self.id), *limit, *self._where])
        message = messages.take()
        if code != 0:
            raise _error(code, message, self._words)

    def log(self, lines: Optional[int] = None) -> str:
        """The job's output so far, standard output and error together. lines: only the last so many."""
        last = [] if lines is None else [f"--lines={operator.index(lines)}"]
        return _output(self._words, ["logs", str(self.id), *last, *self._where]).decode("utf-8", "replace")

    def info(self) -> Dict[str, Any]:
        """The job's entry in `gpu-owner jobs --json`: state, exitCode, reason, gpus, command, submitted, started, ended and others."""
        for one in _json(self._words, ["jobs", "--all", "--json", *self._where]):
            if one["id"] == self.id:
                return dict(one)
        raise UsageError(f"you have no job {self.id} on this machine; `gpu-owner jobs --all` lists those that you have")

    @property
    def state(self) -> "_State":
        """'waiting', 'running', 'completed', 'failed', 'cancelled' or 'lost'. `state()` is the same."""
        return _State(self.info()["state"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and (self.id, self._where) == (other.id, other._where)

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Job({self.id})"


@_explains_options
def submit(
    words: Sequence[Path],
    *,
    gpus: int = 1,
    name: Optional[str] = None,
    note: Optional[str] = None,
    after: Optional[Jobs] = None,
    after_ok: Optional[Jobs] = None,
    array: Optional[str] = None,
    time_limit: Union[None, float, str] = None,
    idle: Union[None, float, str] = None,
    signal: Optional[str] = None,
    output: Optional[Path] = None,
    notify: bool = False,
    cwd: Optional[Path] = None,
    env: Optional[Mapping[str, str]] = None,
    wait: Union[None, bool, float, str] = True,
    memory: Optional[Size] = None,
    min_free_memory: Optional[Size] = None,
    max_used_memory: Optional[Size] = None,
    allow_processes: bool = False,
    max_power: Optional[Union[float, str]] = None,
    max_utilization: Optional[Union[float, str]] = None,
    max_temperature: Optional[Union[float, str]] = None,
    allow_unknown: bool = False,
    devices: Optional[Selector] = None,
    exclude: Optional[Selector] = None,
    exclude_names: Optional[Selector] = None,
    force: bool = False,
    placeholder: Optional[str] = None,
    visible_devices: Optional[str] = None,
    lock_dir: Optional[str] = None,
    lock_timeout: Union[None, float, str] = None,
    urgent: bool = False,
    preemptible: bool = False,
    grace: Union[None, float, str] = None,
    simulate: Optional[Union[int, str]] = None,
    command: Optional[Command] = None,
) -> Job:
    """
    Runs a program in the background as soon as enough GPUs are free. The job goes on when this process has ended, and after you
    log out.

        job = submit(["python", "train.py", "--lr", "0.1"], gpus=2, name="train", time_limit="4h")
        job.wait()

    words: the program and its arguments; no shell reads them. gpus: how many GPUs.
    name, note: which other users see.
    after: jobs (a Job, a number, a name, or a list of them) that must have ended before; after_ok: those that must have ended with
        exit code 0, otherwise this one is cancelled.
    array: parts of an array, such as '0-99%4': each has its own GPUs, and its number in GPU_OWNER_ARRAY_ID.
    time_limit: seconds or '4h', after which it is ended; signal: 'USR1@5m' is sent 5 minutes before.
    idle: seconds or '1h', after which it is ended if its GPUs did nothing meanwhile.
    output: a file that its output is appended to ('%j' is its number, '%n' its name); by default one that `Job.log()` reads, too.
    notify: notify you when the job starts and ends, as the configuration says.
    cwd: where it starts (here). env: all of its environment (this process's, without what claims have changed).
    preemptible: use GPUs that would be idle, and wait anew when another request needs them. grace: how long it has to end then,
        seconds or '30s' (default); signal: 'USR1' is sent in place of SIGTERM.
    wait: True (default) until GPUs are free, or for at most so long. Other parameters are those of `claim`.

    Raises UsageError for what can never run, NoDriverError, CommandNotFoundError, or else GPUOwnerError. There is no job then.
    """
    if isinstance(words, (str, bytes)) or not words:
        raise UsageError(f"words: {words!r} is not a list of words such as ['python', 'train.py']; a shell's line is ['sh', '-c', line]")
    args = ["submit", f"--gpus={_count(gpus, 'gpus')}"]
    args.append(_wait_option(wait))
    for option, text in (("name", name), ("note", note), ("array", array), ("signal", signal), ("output", output)):
        if text is not None:
            args.append(f"--{option}={os.fspath(text)}")
    for option, jobs in (("after", after), ("after-ok", after_ok)):
        args += [f"--{option}={word}" for word in _jobs(jobs, option.replace("-", "_"))]
    if time_limit is not None:
        args.append(f"--for={_duration(time_limit, 'time_limit')}")
    if idle is not None:
        args.append(f"--idle={_duration(idle, 'idle')}")
    for option, flag in (("notify", notify), ("urgent", urgent), ("preemptible", preemptible)):
        if flag:
            args.append(f"--{option}")
    if grace is not None:
        args.append(f"--grace={_duration(grace, 'grace')}")
    args += _criteria_among(locals())
    for option, value in (("memory", memory), ("placeholder", placeholder), ("visible-devices", visible_devices)):
        if value is not None:
            args.append(f"--{option}={value}")
    if lock_timeout is not None:
        args.append(f"--lock-timeout={_duration(lock_timeout, 'lock_timeout')}")
    try:
        args += ["--", *(os.fspath(word) for word in words)]
    except TypeError as error:
        raise UsageError(f"words: all of them must be strings or paths: {error}") from None
    directory = None if cwd is None else os.fspath(cwd)
    if directory is not None and not os.path.isdir(directory):
        raise UsageError(f"cwd: there is no directory {directory!r}")
    program = _command(command)
    if os.sep in program[0]:
        program[0] = os.path.abspath(program[0])  # the program is started in another directory
    variables = _outer_environment() if env is None else {**env, "GPU_OWNER_ERRORS": "json"}
    number = _output(program, args, variables, directory, "gpus")
    return Job(int(number.decode()), simulate=simulate, command=program)


def _jobs(value: Optional[Jobs], name: str) -> List[str]:
    if value is None:
        return []
    try:
        each = [value] if isinstance(value, (int, str, Job)) else list(value)
    except TypeError:
        raise UsageError(f"{name}: {value!r} is neither a job, its number or name, nor a list of them") from None
    return [str(one.id if isinstance(one, Job) else one) for one in each]


# --------------------------------------------------------------------------------------------------------------------
# As GPU Scheduler, gpu_lock and safe-gpu are used


class _LateClaim(Claim):
    _late = True


class _WideClaim(_LateClaim):
    _wide = True


def _number_as_the_driver() -> None:
    """
    CUDA numbers GPUs as nvidia-smi does from now on, if it doesn't run yet. Where the program was started with numbers in
    CUDA_VISIBLE_DEVICES, these keep the meaning that they had.
    """
    with _state:
        numbers = re.match(r"\s*\+?\d", os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        if not _living and not numbers and _cuda_devices() is None:
            os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"


@contextlib.contextmanager
def _called(**names: str) -> Iterator[None]:
    """Errors name the parameters that the caller wrote: `num_gpus` where `claim` says `count`."""
    try:
        yield
    except UsageError as error:
        message = re.sub(rf"\A({'|'.join(names)})(?=:)", lambda match: names[match.group()], str(error))
        raise UsageError(message, error.exit_code, error.code) from None


def _scheduled(made: Claim) -> List[int]:
    """Plain numbers, as the original's, where they mean the same in children: some programs take no other kind (Lightning, YAML)."""
    return [gpu if isinstance(gpu, _ScheduledGPU) else int(gpu) for gpu in made]


class GPUScheduler:
    """
    As GPU Scheduler's: `with GPUScheduler(num_gpus=2) as gpu_ids:`. gpu_ids are the numbers of nvidia-smi, and CUDA sees all GPUs: both
    f"cuda:{gpu_ids[0]}" and a child's CUDA_VISIBLE_DEVICES of these numbers are right, and PyTorch's plain "cuda". With
    visible="narrow" CUDA sees the claimed ones only, counted from 0; so it does where CUDA_VISIBLE_DEVICES was inherited (in a job,
    too) and leaves some out.

    A claim is woken when a GPU comes free, so poll_interval is without effect. specific_gpus are indices of nvidia-smi. debug_mode skips
    health and thresholds, and doesn't wait. Other keyword parameters are those of `claim`. After max_wait_time, and at once where
    waiting would not help: a TimeoutError. Each thread that enters it has GPUs of its own.
    """

    def __init__(
        self,
        memory_free_threshold_gb: Optional[float] = 20,
        power_threshold_w: Optional[float] = 80,
        utilization_threshold_percent: Optional[float] = 1,
        max_wait_time: Optional[float] = math.inf,
        poll_interval: float = 10,
        specific_gpus: Optional[Selector] = None,
        timeout: Optional[float] = 10,
        num_gpus: int = 1,
        debug_mode: bool = False,
        *,
        visible: str = "all",
        **options: Any,
    ) -> None:
        if visible not in ("all", "narrow"):
            raise UsageError(f"visible: {visible!r} is neither 'all' nor 'narrow'")
        self._visible = visible
        _number_as_the_driver()
        self.memory_free_threshold_gb = memory_free_threshold_gb
        self.power_threshold_w = power_threshold_w
        self.utilization_threshold_percent = utilization_threshold_percent
        self.max_wait_time = max_wait_time
        self.poll_interval = poll_interval
        self.specific_gpus = specific_gpus
        self.timeout = timeout
        self.num_gpus = num_gpus
        self.debug_mode = debug_mode
        self.gpu_ids = []  # type: List[int]
        self._options = options
        self._claims = []  # type: List[Tuple[int, Claim]]  # each with its thread

    def __enter__(self) -> List[int]:
        options = {
            **_thresholds(self.memory_free_threshold_gb, self.power_threshold_w, self.utilization_threshold_percent, self._options),
            "wait": False if self.debug_mode else self.max_wait_time,
            "devices": self.specific_gpus,
            # Less than 0 is filelock's "for ever". A claim waits for another one's decision as long as by default instead.
            "lock_timeout": None if isinstance(self.timeout, (int, float)) and self.timeout < 0 else self.timeout,
            "force": self.debug_mode,
            **self._options,
        }
        options = _bans(options, options.get("command"))
        names = {
            **{"count": "num_gpus", "wait": "max_wait_time", "devices": "specific_gpus", "lock_timeout": "timeout"},
            **{"min_free_memory": "memory_free_threshold_gb", "max_power": "power_threshold_w"},
            "max_utilization": "utilization_threshold_percent",
        }
        try:
            with _called(**{name: own for name, own in names.items() if name not in self._options}):
                made = claim(self.num_gpus, _made=_WideClaim() if self._visible == "all" else _LateClaim(), **options)
        except UsageError as error:
            ids = ",".join(map(str, options.get("exclude") or []))
            if not _replaced or not ids:
                raise
            text = str(error).replace("excluded by exclude", "excluded by BANNED_GPUS")
            raise UsageError(f"{text}\nStart the job with `gpu-owner run --exclude {ids}`", error.exit_code, error.code) from None
        except GPUUnavailableError as error:
            if options["wait"] is False or isinstance(error, WaitTimeoutError):
                raise
            raise WaitTimeoutError(str(error), error.exit_code) from error
        self.gpu_ids = _scheduled(made.__enter__())
        self._claims.append((threading.get_ident(), made))
        _scheduler_log.info("Acquired %d GPUs: %s", len(self.gpu_ids), self.gpu_ids)
        return self.gpu_ids

    def __exit__(self, *_: Any) -> None:
        own = [at for at, (thread, _) in enumerate(self._claims) if thread == threading.get_ident()]
        made = self._claims.pop(own[-1] if own else -1)[1]
        gpus = _scheduled(made)
        made.__exit__()
        _scheduler_log.info("Released GPUs: %s", gpus)
        self.gpu_ids = _scheduled(self._claims[-1][1]) if self._claims else []


class _Lock(_LateClaim):
    """A claim that can be entered again when it has ended: each time it claims the same GPUs again."""

    def __init__(self, count: int, options: Dict[str, Any]) -> None:
        super().__init__()
        self._options = options
        self._turn = threading.RLock()
        claim(count, _made=self, **options)

    @property
    def uid(self) -> Union[int, List[int]]:
        indices = [device.index for device in self._holding.devices]
        return indices[0] if len(indices) == 1 else indices

    def __enter__(self) -> "Claim":
        with self._turn:
            if not self.held:
                self.release()  # the rest of the claim
                claim(len(self), _made=self, **{**self._options, "devices": [device.uuid for device in self._holding.devices]})
            return super().__enter__()

    def __exit__(self, *_: Any) -> None:
        with self._turn:
            super().__exit__()


def lock_gpu(uid: Optional[Selector] = None, n: Optional[int] = None, n_system_gpus: Optional[int] = None, **options: Any) -> Claim:
    """
    As gpu_lock's: `with lock_gpu(uid=0):`, `with lock_gpu(n=2):` or `with lock_gpu():`; a RuntimeError if it is taken. The claim is made
    by the call, and again by each `with` after the first, which ends it. CUDA_VISIBLE_DEVICES has numbers and only what this process
    has locked, so CUDA's only GPU here is the one that is locked: "cuda:0". n_system_gpus is without effect.
    """
    selected = None if uid is None else _list(uid, "uid")
    count = n if n is not None else 1 if selected is None else len(selected)
    with _called(count="n", devices="uid"):
        return _Lock(count, {"wait": False, "devices": selected, "visible_devices": _form("index"), **options})


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
        self.devices_taken = []  # type: List[int]
        self.placeholders = []  # type: List[Any]
        kept = "keep" if placeholder_fn is None else "auto"
        self.claim = None  # type: Optional[Claim]
        self.logger.info("acquiring lock")
        if nb_gpus == 0:
            self.logger.info("lock acquired")
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
            self.logger.info("Set CUDA_VISIBLE_DEVICES=")
            self.logger.info("lock released")
            return
        with _called(count="nb_gpus"):
            self.claim = made = _dropped_owners_claim(nb_gpus) or claim(
                nb_gpus, **{"wait": False, "placeholder": kept, "visible_devices": _form("index"), **options}
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
    shown = (_before.get("CUDA_VISIBLE_DEVICES") or "") if os.environ.get("GPU_OWNER_JOB") else ""
    entries = [entry.strip() for entry in shown.split(",")]
    return [next((entries.index(name) for name in device.names if name in entries), device.index) for device in made._holding.devices]


def _dropped_owners_claim(count: int) -> Optional[Claim]:
    """The claim of an owner that nothing refers to. Once CUDA runs, the process can have no other GPUs than these."""
    if _cuda_devices() is not None:
        for kept in [one.kept for one in _living if one.kept is not None]:
            if kept._owner is not None and kept._owner() is None and len(kept) == count and kept.held:
                return kept
    return None


gpu_owner = None  # type: Optional[GPUOwner]


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


# --------------------------------------------------------------------------------------------------------------------
# Tasks of experiments. All that is needed are two files, so this part doesn't start the command.

_MAX_BYTES = 1024 * 1024  # a longer result isn't accepted by the worker
_MAX_DEPTH = 64


class Task(Dict[str, Any]):
    """
    The task that this program is run for: a dict of its parameters, `task["lr"]`, with some attributes. `id` and `phase` are None
    if the program was started by hand.
    """

    def __init__(self, fields: Dict[str, Any]) -> None:
        super().__init__(fields.get("parameters", {}))
        self.id = fields.get("id")  # type: Optional[str]
        self.name = fields.get("name")  # type: Optional[str]
        self.phase = fields.get("phase")  # type: Optional[str]
        self.seed = fields.get("seed")
        self.output_dir = fields.get("output_dir", os.curdir)  # type: str
        self.start = fields.get("start", 1)  # type: int
        self.worker = fields.get("worker")  # type: Optional[str]

    @property
    def parameters(self) -> Dict[str, Any]:
        return self

    def __missing__(self, name: str) -> Any:
        attribute = {"phase_name": "phase"}.get(name, name)
        if hasattr(self, attribute) and not hasattr(dict, attribute):
            raise KeyError(f"{name}: is not a parameter; write task.{attribute}")
        known = ", ".join(map(str, self)) or "none"
        raise KeyError(f"{name}: the task has no such parameter; it has {known}")


def task(default: Optional[Mapping[str, Any]] = None) -> Task:
    """
    The task that `gpu-owner exp` runs this program for. `default` has the parameters for when it is started by hand; within a
    task they don't count. `output_dir` is relative to the project, which is the current directory unless the program changes it.

    Raises NoTaskError if there is neither a task nor a `default`.
    """
    path = os.environ.get("GPU_OWNER_TASK")
    if not path:
        if default is None:
            raise NoTaskError(
                "This program isn't run by 'gpu-owner exp': GPU_OWNER_TASK isn't set. To run it by hand, say with which "
                'parameters: gpu_owner.task(default={"lr": 0.1})'
            )
        parameters = dict(default)
        output = os.fspath(parameters.pop("output_dir", os.curdir))
        by_hand = {"name": "by hand", "parameters": parameters, "seed": parameters.get("seed"), "output_dir": output}
        return Task(by_hand)
    try:
        with open(path, encoding="utf-8") as file:
            fields = json.load(file)
    except OSError as error:
        reason = "that attempt has ended" if isinstance(error, FileNotFoundError) else error.strerror
        raise NoTaskError(f"The task can't be read from {path} (GPU_OWNER_TASK): {reason}") from error
    except ValueError as error:
        raise NoTaskError(f"{path} (GPU_OWNER_TASK) isn't a task: {error}") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("parameters"), dict):
        raise NoTaskError(f"{path} (GPU_OWNER_TASK) isn't a task: it has no parameters")
    return Task(fields)


def result(values: Mapping[str, Any]) -> None:
    """
    Reports the task's result: each key becomes a column of its table. Numbers (NaN, infinities and scalars of NumPy, PyTorch and
    others included), strings, paths, booleans, None; lists and dicts of them become JSON. If it is called again, in other
    processes of the task too, later values join or replace earlier ones. The file is there as a whole or not at all.

    Outside of a task, the values are printed to standard output as a line of JSON.

    Raises UsageError if a value can't be written, and GPUOwnerError if the file can't.
    """
    members = _members(values)
    path = os.environ.get("GPU_OWNER_RESULT")
    if not path:
        print(_object(members), flush=True)
        return
    try:
        with _alone_in(os.path.dirname(os.path.abspath(path))):
            _write_result(path, {**_earlier_result(path), **members})
    except OSError as error:
        raise GPUOwnerError(f"The result can't be written to {path} (GPU_OWNER_RESULT): {error.strerror}") from error


def report(step: int, **values: Any) -> None:
    """
    Reports values so far, such as those of an epoch: `report(epoch, loss=0.3)`. A search compares trials by them at equal steps,
    and stops bad ones early; the last ones count if the program writes no result. Values are as those of `result`.

    Outside of a task, nothing happens.

    Raises UsageError if a value can't be written, and GPUOwnerError if the file can't.
    """
    if not isinstance(step, int) or step < 0:
        raise UsageError(f"the step of a report is a whole number from 0 on, not {step!r}")
    line = _object({"step": str(int(step)), **_members(values)})
    path = os.environ.get("GPU_OWNER_PROGRESS")
    if not path:
        return
    try:
        # One call of write: lines of several processes don't mix.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise GPUOwnerError(f"The values can't be written to {path} (GPU_OWNER_PROGRESS): {error.strerror}") from error


def _members(values: Mapping[str, Any]) -> Dict[str, str]:
    """The JSON of each value."""
    if not isinstance(values, collections.abc.Mapping):
        raise UsageError(f'a result is a dict such as {{"accuracy": 0.9}}, not {_describe_type(values)}')
    members = {}
    for key, value in values.items():
        if not isinstance(key, str) or not key:
            raise UsageError(f"the keys of a result are names of columns, so {key!r} can't be one; use a string, such as 'accuracy'")
        try:
            members[key] = json.dumps(_plain(value, key, 0))
        except ValueError as error:  # e.g. an int of more digits than Python writes
            raise error if isinstance(error, UsageError) else UsageError(f"{key}: {error}") from None
    return members


def _plain(value: Any, key: str, depth: int) -> Any:
    """As json.dumps takes it. `key` leads to the value, as 'per_class.cat[0]'."""
    if depth > _MAX_DEPTH:
        raise UsageError(f"{key[:80]}…: it is nested more than {_MAX_DEPTH} levels deep, or contains itself")
    if hasattr(value, "item") and not getattr(value, "ndim", 0) and not isinstance(value, collections.abc.Mapping):
        value = value.item()  # scalars of NumPy, PyTorch, JAX, CuPy
    elif hasattr(value, "tolist"):
        value = value.tolist()
    if value is None or isinstance(value, (bool, str)):
        return value
    # Enumerations and the like are numbers that json wouldn't write as such in every version.
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, os.PathLike) and isinstance(os.fspath(value), str):
        return os.fspath(value)
    if isinstance(value, collections.abc.Mapping):
        return {_name(name, key): _plain(each, f"{key}.{name}", depth + 1) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each, f"{key}[{index}]", depth + 1) for index, each in enumerate(value)]
    what = _describe_type(value)
    raise UsageError(f"{key}: {what} can't be written; use numbers, strings, booleans, None, and lists and dicts of them")


def _name(name: Any, key: str) -> str:
    if hasattr(name, "item"):
        name = name.item()
    if isinstance(name, (str, int, float)):
        return str(name)
    raise UsageError(f"{key}: the key {name!r} of this dict can't be written; use strings and numbers")


def _describe_type(value: Any) -> str:
    return f"a value of type {type(value).__module__}.{type(value).__qualname__}".replace("builtins.", "")


def _object(members: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(key)}: {text}" for key, text in members.items()) + "}"


@contextlib.contextmanager
def _alone_in(directory: str) -> Iterator[None]:
    """Ranks that write at the same time come one after the other. The directory is locked, so no file is left."""
    try:
        import fcntl
    except ImportError:  # on Windows
        yield
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(descriptor)


def _earlier_result(path: str) -> Dict[str, str]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return {}
    try:
        earlier = json.loads(text) if text else {}
    except ValueError as error:
        raise GPUOwnerError(f"{path} (GPU_OWNER_RESULT) has something that isn't JSON: {error}") from error
    if not isinstance(earlier, dict):
        raise GPUOwnerError(f"{path} (GPU_OWNER_RESULT) has {_describe_type(earlier)} where an object belongs")
    return {key: json.dumps(value) for key, value in earlier.items()}


def _write_result(path: str, members: Mapping[str, str]) -> None:
    data = (_object(members) + "\n").encode()
    if len(data) > _MAX_BYTES:
        longest = max(members, key=lambda key: len(members[key]))
        raise UsageError(
            f"the result has {len(data):,} bytes, and may have {_MAX_BYTES:,}; the longest value is that of {longest!r} "
            f"({len(members[longest]):,} bytes). Write large things to a file in task().output_dir, and its path here"
        )
    temporary = f"{path}.{os.getpid()}-{threading.get_ident()}"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
