"""Parameters of claims and jobs, as options of the command."""

from __future__ import annotations

import contextlib
import math
import operator
import re

from .errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Iterator, List, Mapping, Optional, Sequence, Union

    Size = Union[int, float, str]
    Selector = Union[int, str, Iterable[Union[int, str]]]
    Command = Union[str, Sequence[str]]


def selected_words(value: Selector, name: str) -> List[str]:
    if isinstance(value, (int, str)):
        value = [value]
    try:
        # A GPU of a claim is a number of CUDA's, not of the machine, and an instance of MIG has that of its GPU.
        words = [getattr(one, "uuid", None) or str(one) for one in value]
    except TypeError:
        raise UsageError(f"{name}: {value!r} is neither an index, a name or UUID, nor a list of them") from None
    if not words:
        raise UsageError(f"{name}: the list is empty; leave it out to allow all")
    return words


def number_word(value: Union[int, float, str]) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) and math.isfinite(value) else str(value)


def criteria_words(
    min_free_memory: Optional[Size] = None,
    max_used_memory: Optional[Size] = None,
    allow_processes: bool = False,
    max_power: Optional[Union[float, str]] = None,
    max_utilization: Optional[Union[float, str]] = None,
    max_temperature: Optional[Union[float, str]] = None,
    allow_unknown: bool = False,
    devices: Optional[Selector] = None,
    exclude: Optional[Selector] = None,
    force: bool = False,
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
            args.append(f"--{name}={number_word(value)}")
    for name, selectors in (("devices", devices), ("exclude", exclude)):
        if selectors is not None:
            args += [f"--{name}={word}" for word in selected_words(selectors, name)]
    for name, flag in (("allow-processes", allow_processes), ("allow-unknown", allow_unknown), ("force", force)):
        if flag:
            args.append(f"--{name}")
    return args


CRITERIA = tuple(name for name in criteria_words.__annotations__ if name != "return")


def criteria_among(parameters: Mapping[str, Any]) -> List[str]:
    """The criteria of a call that has all of them as parameters. `parameters` are its locals()."""
    return criteria_words(**{name: parameters[name] for name in CRITERIA})


def wait_option(wait: Union[None, bool, float, str]) -> str:
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


def whole_count(count: Any, name: str = "count") -> int:
    try:
        if not isinstance(count, bool):
            return operator.index(count)
    except TypeError:
        pass
    raise UsageError(f"{name}: {count!r} is not a number of GPUs; use 1, 2, …")


def duration_word(value: Union[float, str], name: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf:
        return f"{int(value)}s" if value == int(value) else f"{math.ceil(value * 1000)}ms"
    raise UsageError(f"{name}: {value!r} is not a duration; use seconds, or a string such as '10m'")


def request_words(options: Mapping[str, Any]) -> List[str]:
    """The parameters that `Executor` and `submit` have in common, and some of `submit` alone."""
    args = [f"--gpus={whole_count(options['gpus'], 'gpus')}", wait_option(options["wait"]), *criteria_among(options)]
    for name in ("name", "note", "array", "signal", "retry", "memory", "placeholder", "visible_devices"):
        if options.get(name) is not None:
            args.append(f"--{name.replace('_', '-')}={options[name]}")
    for name in ("time_limit", "idle", "grace"):
        if options[name] is not None:
            args.append(f"--{name.replace('time_limit', 'for')}={duration_word(options[name], name)}")
    return args + [f"--{name}" for name in ("notify", "together", "urgent", "preemptible") if options.get(name)]


@contextlib.contextmanager
def parameters_called(**names: str) -> Iterator[None]:
    """Errors name the parameters that the caller wrote: `num_gpus` where `claim` says `count`."""
    try:
        yield
    except UsageError as error:
        message = re.sub(rf"\A({'|'.join(names)})(?=:)", lambda match: names[match.group()], str(error))
        raise UsageError(message, error.exit_code, error.code) from None
