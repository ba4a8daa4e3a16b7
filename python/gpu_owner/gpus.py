"""The GPUs that this process holds."""

from __future__ import annotations

import os
import sys

from . import environment
from .cuda import cuda_devices
from .environment import holdings

TYPE_CHECKING = False
if TYPE_CHECKING:
    import weakref
    from typing import Any, Dict, List, Optional, Tuple

    from .claims import Claim
    from .holder import Holder


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


class ScheduledGPU(GPU):
    """
    One whose number is not the machine's, as CUDA's view is limited. As text it is its UUID: CUDA_VISIBLE_DEVICES of a child is made
    of texts, and there the number would be another GPU. f"cuda:{gpu}" is right, too.
    """

    def __str__(self) -> str:
        return self.uuid

    def __format__(self, form: str) -> str:
        return int.__format__(int(self), form)


class Device:
    """A GPU as the machine numbers it."""

    def __init__(self, index: int, uuid: str, name: str, instance: Optional[int]) -> None:
        self.index, self.uuid, self.name, self.instance = index, uuid, name, instance

    @property
    def names(self) -> List[str]:
        """The names of the GPU in CUDA_VISIBLE_DEVICES."""
        return [self.uuid] if self.instance is not None else [str(self.index), self.uuid]


class Holding:
    """The GPUs that this process holds by one claim, whether or not anything refers to the `Claim`."""

    def __init__(self, holder: Holder, answer: Dict[str, Any], place: "Place") -> None:
        self.holder = holder
        self.place = place
        self.visible_devices = str(answer["visibleDevices"])
        self.entries = self.visible_devices.split(",")
        self.by_index = self.entries[0].isdigit()
        # The share of each GPU, in bytes; None: all of it.
        self.memory: Optional[int] = answer.get("memory")
        self.devices = [Device(int(one["index"]), str(one["uuid"]), str(one["name"]), one.get("instance")) for one in answer["devices"]]
        self.ordinals = list(range(len(self.devices)))
        # Whether CUDA_VISIBLE_DEVICES stays as it is without the claim, and whether CUDA's numbers mean the same GPUs in children then.
        self.wide = self.numbered = False
        # Whether it is a GPUScheduler's that shows all.
        self.scheduled = False
        self.origin = Origin(None, None)
        self.request: List[str] = []
        self.claim: Optional[weakref.ref[Claim]] = None
        # Whether the user knows that nothing refers to the claim, and that exec ends it.
        self.is_told = self.is_told_of_exec = False
        # The claim, where the module itself keeps it: it is to last as long as the process.
        self.kept: Optional[Claim] = None

    def is_held(self) -> bool:
        with environment.lock:
            if self not in holdings:
                return False
        self.holder.drain()
        return self.holder.is_running()

    def describe_gpus(self) -> str:
        return ", ".join(f"GPU {device.index}" for device in self.devices)


class Origin:
    """The name of a claim, or the notebook's cell that made it and in which execution. A later one of the same origin replaces it."""

    def __init__(self, name: Optional[str], cell: Optional[Tuple[str, int]]) -> None:
        self.name, self.cell = name, cell

    def is_replaced_by(self, later: "Origin") -> bool:
        if later.name is not None:
            return self.name == later.name
        if self.cell is None or later.cell is None:
            return False
        return self.cell[0] == later.cell[0] and self.cell[1] != later.cell[1]

    def __str__(self) -> str:
        return "this cell" if self.name is None else f"the name {self.name!r}"


class Place:
    """The line of a claim, for messages."""

    def __init__(self, file: str, line: int) -> None:
        self.file, self.line = file, line

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def caller() -> Place:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("gpu_owner."):
        frame = frame.f_back
    return Place(frame.f_code.co_filename, frame.f_lineno)


def warn_of_unused(holding: Holding) -> None:
    """A claim that nothing refers to: the program could have meant to end it, or may think that it has ended."""
    if holding.holder.owner != os.getpid() or not holding.is_held() or cuda_devices() is not None:
        return
    holding.is_told = True
    import warnings

    warnings.warn_explicit(
        f"nothing refers to this claim any more, and it keeps {holding.describe_gpus()} until the process ends. Keep what claim() "
        "returns in a variable as long as the GPU is used, and release() it, or use a `with` block.",
        RuntimeWarning,
        holding.place.file,
        holding.place.line,
    )
