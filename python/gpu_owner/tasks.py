"""Tasks of sweeps. All that they need are two files, so this module doesn't start the command."""

from __future__ import annotations

import collections.abc
import contextlib
import json
import os
import threading

from .errors import GPUOwnerError, NoTaskError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, Mapping, Optional

    _DictOfValues = Dict[str, Any]
else:
    _DictOfValues = dict

_MAX_BYTES = 1024 * 1024  # a longer result isn't accepted by the worker
_MAX_DEPTH = 64


class Task(_DictOfValues):
    """
    The task that this program is run for: a dict of its parameters, `task["lr"]`, with some attributes. `id` and `phase` are None
    if the program was started by hand.
    """

    def __init__(self, fields: Dict[str, Any]) -> None:
        super().__init__(fields.get("parameters", {}))
        self.id: Optional[str] = fields.get("id")
        self.name: Optional[str] = fields.get("name")
        self.phase: Optional[str] = fields.get("phase")
        self.seed = fields.get("seed")
        self.output_dir: str = fields.get("output_dir", os.curdir)
        self.start: int = fields.get("start", 1)
        self.worker: Optional[str] = fields.get("worker")

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
