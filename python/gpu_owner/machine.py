"""The GPUs of the machine, without claiming any."""

from __future__ import annotations

import collections.abc
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from .command import command_words, read_json
from .criteria import criteria_among

if TYPE_CHECKING:
    from typing import Iterator, Mapping, Sequence, Tuple, Union

    from .criteria import Command, Selector, Size
    from .records import GPU
    from .records import GPUAttributes as _Attributes

    _MappingOfValues = Mapping[str, Any]
else:  # Python 3.8 can\'t subscript it
    _MappingOfValues = collections.abc.Mapping
    _Attributes = object

_MIB = 1024**2


class GPUStatus(int, _MappingOfValues, _Attributes):
    """
    A GPU of the machine. As a number it is its index in nvidia-smi, not an ordinal of CUDA's; of a MIG instance, its GPU's.

    raw: the object of `gpu-owner status --json`. The members are attributes, too: `powerWatts` is `gpu.power_watts`.
    Values that the driver can't tell are None.

    As a mapping it is what GPU Scheduler tells: gpu["gpu_id"], and the other keys of `get_gpu_info`.
    """

    def __new__(cls, raw: GPU) -> "GPUStatus":
        self = super().__new__(cls, raw["index"])
        self.raw = raw
        return self

    raw: GPU

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

    def __getattr__(self, name: str) -> Any:
        key = "".join(part.capitalize() if i else part for i, part in enumerate(name.split("_")))
        members: Any = {} if name == "raw" else self.raw
        if key not in members:
            raise AttributeError(f"a GPUStatus has no {name!r}")
        return members[key]

    @property
    def memory_total(self) -> Optional[int]:
        return self.raw["memory"]["totalBytes"]

    @property
    def memory_used(self) -> Optional[int]:
        return self.raw["memory"]["usedBytes"]

    @property
    def memory_free(self) -> Optional[int]:
        return self.raw["memory"]["freeBytes"]

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
    force: bool = False,
    command: Optional[Command] = None,
) -> List[GPUStatus]:
    """All GPUs of the machine, each with who has it. Free means free for these criteria, those of `claim`. Takes nothing."""
    args = criteria_among(locals())
    return snapshot(command_words(command), ["status", "--json", *args])


def snapshot(command: Sequence[str], args: Sequence[str]) -> List[GPUStatus]:
    return [GPUStatus(raw) for raw in read_json(command, args)]
