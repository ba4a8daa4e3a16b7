"""
The environment: CUDA_VISIBLE_DEVICES is the union of the living claims' GPUs, in the order in which they came. The last
one restores what was there at first, unless other code has changed it meanwhile. Where all of them are wide, it stays as it
was, and CUDA counts as nvidia-smi does.
"""

from __future__ import annotations

import os
import re
import threading

from . import initial_variables
from .cuda import cuda_devices, digits_of, initialized_error
from .errors import CUDAInitializedError, GPUUnavailableError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Sequence, Tuple

    from .claims import Claim
    from .gpus import Holding

VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
# The claim that CUDA_VISIBLE_DEVICES comes from, for claims in children of this process.
MARK = "GPU_OWNER_PYTHON_CLAIM"
lock = threading.RLock()
once_lock = threading.RLock()  # while a call with `once` claims
holdings: List[Holding] = []
ever_shown: set[str] = set()  # digits of the UUIDs of all GPUs that claims have shown to this process
first_shown = ""  # GPUs and place of the claim that was the first to show some to this process
wide_names: set[str] = set()  # numbers and UUIDs of wide claims, which programs write to CUDA_VISIBLE_DEVICES themselves
before: Dict[str, Optional[str]] = {}
written: Dict[str, Optional[str]] = {}


def _read_variables() -> Dict[str, Optional[str]]:
    return {name: os.environ.get(name) for name in VARIABLES}


def _write_variables(variables: Dict[str, Optional[str]]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def inherited_variables() -> Dict[str, Optional[str]]:
    """The variables that limit the next claim: without those that the program itself has made of an earlier claim's numbers."""
    present = _read_variables()
    value = present["CUDA_VISIBLE_DEVICES"]
    own = value and value != initial_variables["CUDA_VISIBLE_DEVICES"] and wide_names.issuperset(value.replace(" ", "").split(","))
    return dict(initial_variables) if own else present


def _union() -> Tuple[List[str], List[str]]:
    """UUIDs of all living claims' GPUs, and what CUDA_VISIBLE_DEVICES calls them."""
    uuids, entries = [], []  # type: List[str], List[str]
    for living in holdings:
        for device, entry in zip(living.devices, living.entries):
            if device.uuid not in uuids:
                uuids.append(device.uuid)
                entries.append(entry)
    return uuids, entries


def all_wide() -> bool:
    return all(living.wide for living in holdings)


def _update_environment() -> None:
    global written
    if all_wide():
        written = {"CUDA_VISIBLE_DEVICES": before["CUDA_VISIBLE_DEVICES"], "CUDA_DEVICE_ORDER": _order_of_numbers()}
    else:
        order = "PCI_BUS_ID" if holdings[-1].by_index else before["CUDA_DEVICE_ORDER"]
        written = {"CUDA_VISIBLE_DEVICES": ",".join(_union()[1]), "CUDA_DEVICE_ORDER": order}
    _write_variables(written)
    names = [name for living in holdings for device in living.devices for name in device.names]
    # Children that get CUDA's numbers of this process as theirs: sitecustomize.py of a job translates them.
    job = os.environ.get("GPU_OWNER_JOB")
    for living in holdings if job else ():
        if living.scheduled and not living.numbered:
            names += [f"{ordinal}@{job}={device.uuid}" for ordinal, device in zip(ordinals_of(living), living.devices)]
    os.environ[MARK] = f"{os.getpid()}:{start_time(os.getpid())}:{','.join(names)}"


def ordinals_of(holding: "Holding") -> List[int]:
    """CUDA counts as in what it read when it was initialised, or else will count as CUDA_VISIBLE_DEVICES is now."""
    cuda, uuids, wide = cuda_devices() or [], _union()[0], all_wide()
    return [
        cuda.index(digits_of(device.uuid)) if digits_of(device.uuid) in cuda else device.index if wide else uuids.index(device.uuid)
        for device in holding.devices
    ]


def _order_of_numbers() -> Optional[str]:
    """CUDA_DEVICE_ORDER with which children count as this process does: CUDA may already have counted in its own order here."""
    cuda = cuda_devices() or []
    devices = [device for living in holdings for device in living.devices]
    own = all(digits_of(device.uuid) not in cuda or cuda.index(digits_of(device.uuid)) == device.index for device in devices)
    return "PCI_BUS_ID" if own else before["CUDA_DEVICE_ORDER"]


def join_environment(made: "Holding") -> None:
    global before, first_shown
    if not holdings:
        before = inherited_variables()
        before[MARK] = os.environ.get(MARK)
    holdings.append(made)
    if made.wide:
        wide_names.update(name for device in made.devices for name in device.names)
    elif not shows_others(cuda_devices()):
        ever_shown.update(digits_of(device.uuid) for device in made.devices)
        first_shown = first_shown or f"{made.describe_gpus()}, claimed at {made.place}"
    _update_environment()


def shows_others(bound: Optional[List[str]]) -> bool:
    """Whether CUDA runs and shows GPUs to this process that no claim has shown to it."""
    return bound is not None and not (bound and ever_shown.issuperset(bound))


def leave_environment(made: "Holding") -> None:
    global before, written
    if made not in holdings:
        return
    holdings.remove(made)
    ours = _read_variables() == written
    if holdings:
        if ours:
            _update_environment()
        return
    if ours:
        _write_variables(before)
    else:
        _write_variables({MARK: before[MARK]})
    before, written = {}, {}


def reset_in_child() -> None:
    """A forked child owns no claim. CUDA_VISIBLE_DEVICES stays: the child may use what its parent has."""
    global lock, once_lock, before, written
    lock, once_lock = threading.RLock(), threading.RLock()
    del holdings[:]
    ever_shown.clear()
    wide_names.clear()
    before, written = {}, {}


def start_time(pid: int) -> Optional[str]:
    """When a process was started, in the kernel's ticks; None: there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return None


def refuse_in_children() -> None:
    """A child's CUDA_VISIBLE_DEVICES allows nothing but what its parent holds: it would wait for its own parent."""
    pid, _, rest = os.environ.get(MARK, "").partition(":")
    started, _, names = rest.partition(":")
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if not pid.isdigit() or int(pid) == os.getpid() or not set(devices.split(",")) <= set(names.split(",")):
        return
    if start_time(int(pid)) != started:
        return
    raise GPUUnavailableError(
        f"process {pid}, from which this one was started, claimed GPUs before ({devices}), and they are what CUDA shows here: use "
        "them without a claim. If this is a child of multiprocessing that runs the main module again, put the claim under "
        "`if __name__ == '__main__':`. If a launcher such as Lightning's runs the script again, start it with `gpu-owner run` in "
        "place of the claim. A child that is to claim for itself must be started without CUDA_VISIBLE_DEVICES and "
        f"{MARK} in its environment."
    )


def form_of_names(default: Optional[str] = None) -> Optional[str]:
    """How CUDA_VISIBLE_DEVICES names GPUs: as it does already, where claims of this process stand."""
    with lock:
        return default if not holdings else "index" if holdings[-1].by_index else "uuid"


def outer_environment() -> Dict[str, str]:
    """As if this process had claimed nothing: its own claims must not limit the next one."""
    env = dict(os.environ)
    env["GPU_OWNER_ERRORS"] = "json"
    env.pop(MARK, None)
    with lock:
        outer = before if holdings else inherited_variables()
    for name in VARIABLES:
        env.pop(name, None)
    env.update({name: value for name, value in outer.items() if value is not None})
    return env


def claimant_environment(made: Claim, count: int, command: Sequence[str]) -> Dict[str, str]:
    """For `hold`, with the GPUs that CUDA shows here."""
    env = outer_environment()
    bound = cuda_devices()
    if bound is None:
        return env
    # CUDA is bound to some GPUs for the life of this process.
    from .machine import snapshot

    if not bound or shows_others(bound) and not made._late:
        raise initialized_error()
    known = {digits_of(gpu.uuid): gpu for gpu in snapshot(command, ["status", "--json"])}
    with lock:
        held = {digits_of(device.uuid): device.index for living in holdings for device in living.devices}
    left = [known[digits] for digits in bound if digits in known and digits not in held]
    if len(left) < count:
        names = ", ".join(f"GPU {held[digits]}" for digits in bound if digits in held)
        places = ", ".join(str(living.place) for living in list(holdings))
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
    return env


def can_be_wide(holding: Holding, command: Sequence[str]) -> bool:
    """Whether CUDA's numbers are the machine's, in this process and in its children, if CUDA_VISIBLE_DEVICES stays as it is."""
    with lock:
        outer = before if holdings else inherited_variables()
        shown, order = outer["CUDA_VISIBLE_DEVICES"], outer["CUDA_DEVICE_ORDER"]
        if not all_wide():
            return False
    from .machine import snapshot

    gpus = snapshot(command, ["status", "--json"])
    # CUDA shows one MIG instance only; whether it counts a GPU that doesn't answer isn't known.
    if any(gpu.instance is not None or not gpu.uuid or gpu.name is None for gpu in gpus):
        return False
    bound = cuda_devices()
    if bound is not None:
        return shown is None and len(bound) == len(gpus)
    if shown is None:
        return True
    names = [word.strip() for word in shown.split(",")]
    by_bus = order == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) == 1
    return len(names) > max(device.index for device in holding.devices) and all(
        name == gpu.uuid or by_bus and name == str(gpu.index) for name, gpu in zip(names, gpus)
    )


def why_hidden() -> str:
    """The reason why a process can't have GPUs that CUDA doesn't show to it any more; empty: CUDA doesn't run."""
    if cuda_devices() is None:
        return ""
    only = f" only {first_shown}" if first_shown else " other GPUs only"
    return f"CUDA runs in this process, and as long as it lives shows it{only}"


def own_note() -> str:
    """A hint at the other claims of this process, for one that waits."""
    with lock:
        held = [f"{one.describe_gpus()} (claimed at {one.place})" for one in holdings]
    return f"gpu-owner: this process itself holds {', '.join(held)}: release() what it doesn't need.\n" if held else ""


def refuse_late(made: Holding, late: bool) -> None:
    """Another thread may have initialised CUDA while this one waited."""
    bound = cuda_devices()
    own = {digits_of(device.uuid) for device in made.devices}
    if bound is not None and not (own <= set(bound) and (late or own | ever_shown >= set(bound))):
        raise initialized_error()


def refuse_mixture(made: Holding) -> None:
    if holdings and holdings[-1].by_index != made.by_index:
        raise UsageError(
            "visible_devices: one claim of this process names GPUs by 'uuid' and another by 'index', but CUDA reads only one "
            "form; use the same for both."
        )
