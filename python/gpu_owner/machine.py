"""The GPUs of the machine, without claiming any."""

from __future__ import annotations

import collections.abc
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, cast

from .command import command_words, read_json
from .criteria import criteria_among

if TYPE_CHECKING:
    from typing import Iterator, Mapping, Sequence, Tuple, Union

    from .criteria import Command, Selector, Size

    _MappingOfValues = Mapping[str, Any]
else:  # Python 3.8 can\'t subscript it
    _MappingOfValues = collections.abc.Mapping

_MIB = 1024**2


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
    args = criteria_among(locals())
    return snapshot(command_words(command), ["status", "--json", *args])


def snapshot(command: Sequence[str], args: Sequence[str]) -> List[GPUStatus]:
    return [GPUStatus(raw) for raw in read_json(command, args)]
