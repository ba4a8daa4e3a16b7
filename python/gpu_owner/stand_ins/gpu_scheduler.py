"""As GPU Scheduler is used."""

from __future__ import annotations

import logging
import math
import os
import re
import threading

from .. import environment
from ..claims import Claim, LateClaim, WideClaim, claim
from ..command import command_words
from ..criteria import criteria_words, parameters_called, selected_words
from ..cuda import cuda_devices
from ..environment import holdings, outer_environment
from ..errors import GPUUnavailableError, NoDriverError, UsageError, WaitTimeoutError
from ..gpus import ScheduledGPU
from ..machine import GPUStatus, snapshot, status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

    from ..criteria import Command, Selector

_GIB = 1024**3
_scheduler_log = logging.getLogger("gpu_scheduler")
replaced: List[Any] = []  # modules of GPU Scheduler that sitecustomize.py of a job has changed: what they ban stays banned


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
        args = criteria_words(**_bans({**thresholds, **criteria}, command))
    except TypeError as error:
        raise TypeError(str(error).replace("criteria_words", "find_free_gpus")) from None
    return _by_gpu(_machine(lambda: free_gpus(command_words(command), args)))


def free_gpus(command: Sequence[str], args: Sequence[str]) -> List[GPUStatus]:
    visible = outer_environment().get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [gpu for gpu in snapshot(command, ["status", "--json", *args]) if gpu.state == "free"]
    # Only the command knows which GPUs a batch system or a job allows: as many of them as it can find.
    for count in range(len(visible.split(",")), 0, -1):
        try:
            return snapshot(command, ["find", "--json", f"--gpus={count}", *args])
        except (GPUUnavailableError, UsageError):
            continue
    return []


def _thresholds(
    memory_gb: Optional[float], power_w: Optional[float], utilization: Optional[float], criteria: Mapping[str, Any]
) -> Dict[str, Any]:
    """
    GPU Scheduler's thresholds, as `claim` calls them, without those that needn't be checked. Values that the driver can't
    tell count as 0, as under WSL 2 and for MIG instances; not where `criteria`, which count instead, have limits of `claim`.
    """
    thresholds: Dict[str, Any] = {"allow_unknown": not {"max_power", "max_utilization", "max_temperature"} & set(criteria)}
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


def _bans(criteria: Mapping[str, Any], command: Optional[Command] = None) -> Dict[str, Any]:
    """`criteria` with what BANNED_GPUS and BANNED_GPU_NAMES leave out. A number that the machine lacks bans nothing."""
    ids = {int(gpu) for module in replaced for gpu in getattr(module, "BANNED_GPUS", None) or ()}
    names = {str(name) for module in replaced for name in getattr(module, "BANNED_GPU_NAMES", None) or ()}
    banned = dict(criteria)
    if ids:
        ids &= {gpu.index for gpu in snapshot(command_words(command), ["status", "--json"])}
    if ids or names:
        given = criteria.get("exclude")
        # The name 3090 would be an index.
        patterns = [f"*{name}*" if name.isdigit() else name for name in sorted(names)]
        banned["exclude"] = [*([] if given is None else selected_words(given, "exclude")), *sorted(ids), *patterns]
    return banned


def get_gpu_info(**options: Any) -> List[Dict[str, Any]]:
    """
    A dictionary per GPU: gpu_id (as in nvidia-smi), name; memory_free, memory_used and memory_total in MiB (1024² bytes);
    power_draw and power_limit in watts, utilization in percent. Unknown is 0. Options are those of `status`.
    """
    return _by_gpu(_machine(lambda: status(**options)))


def _by_gpu(gpus: Iterable[GPUStatus]) -> List[Dict[str, Any]]:
    """GPU Scheduler's dictionaries in its order. GPU Scheduler knows whole GPUs only: memory of MIG instances is added up."""
    found: Dict[int, Dict[str, Any]] = {}
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


def _number_as_the_driver() -> None:
    """
    CUDA numbers GPUs as nvidia-smi does from now on, if it doesn't run yet. Where the program was started with numbers in
    CUDA_VISIBLE_DEVICES, these keep the meaning that they had.
    """
    with environment.lock:
        numbers = re.match(r"\s*\+?\d", os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        if not holdings and not numbers and cuda_devices() is None:
            os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"


def _scheduled(made: Claim) -> List[int]:
    """Plain numbers, as the original's, where they mean the same in children: some programs take no other kind (Lightning, YAML)."""
    return [gpu if isinstance(gpu, ScheduledGPU) else int(gpu) for gpu in made]


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
        self.gpu_ids: List[int] = []
        self._options = options
        self._claims: List[Tuple[int, Claim]] = []  # each with its thread

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
            with parameters_called(**{name: own for name, own in names.items() if name not in self._options}):
                made = claim(self.num_gpus, _made=WideClaim() if self._visible == "all" else LateClaim(), **options)
        except UsageError as error:
            ids = ",".join(map(str, options.get("exclude") or []))
            if not replaced or not ids:
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
