"""Claims of this process."""

from __future__ import annotations

import atexit
import collections.abc
import contextlib
import math
import os
import re
import sys
import weakref

from . import environment
from .command import command_words
from .criteria import criteria_among, wait_option, whole_count
from .cuda import cuda_devices, import_torch, refuse_after_fork
from .environment import (
    all_wide,
    can_be_wide,
    claimant_environment,
    form_of_names,
    holdings,
    join_environment,
    leave_environment,
    ordinals_of,
    own_note,
    refuse_in_children,
    refuse_late,
    refuse_mixture,
    shows_others,
    why_hidden,
)
from .errors import GPUUnavailableError, UsageError
from .gpus import GPU, Holding, Origin, ScheduledGPU, caller, warn_of_unused
from .holder import Holder, holders
from .messages import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional, Sequence, Tuple, Union

    from .criteria import Command, Selector, Size
    from .stand_ins.safe_gpu import GPUOwner

    _SequenceOfGPUs = Sequence[GPU]
else:  # Python 3.8 can't subscript it
    _SequenceOfGPUs = collections.abc.Sequence


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
        self._inside: List[contextlib.ExitStack] = []
        self._finalizer: Any = None
        self._owner: Optional[weakref.ref[GPUOwner]] = None  # safe-gpu's

    def _hold(self, holding: Holding) -> None:
        self._holding = holding
        holding.claim = weakref.ref(self)
        if self._finalizer is not None:
            self._finalizer.detach()
        self._finalizer = weakref.finalize(self, warn_of_unused, holding)
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
        with environment.lock:
            self._number()
            leave_environment(holding)
            holding.kept = None
        holding.holder.end()

    @property
    def held(self) -> bool:
        """Whether the claim stands: not released, its `gpu-owner hold` not killed. False in a forked child."""
        return self._holding.is_held()

    def _number(self) -> List[int]:
        holding = self._holding
        with environment.lock:
            if holding in holdings:
                holding.ordinals = ordinals_of(holding)
            return holding.ordinals

    def _gpus(self) -> List[GPU]:
        kind = ScheduledGPU if self._wide and not self._holding.numbered else GPU
        return [
            kind(ordinal, device.index, device.uuid, device.name, device.instance)
            for ordinal, device in zip(self._number(), self._holding.devices)
        ]

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
            torch = getattr(import_torch() if wide else sys.modules.get("torch"), "cuda", None)
            # Where CUDA shows other GPUs as well, a plain "cuda" would be one of them.
            if torch is not None and (wide or cuda_devices()) and torch.is_available():
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


class LateClaim(Claim):
    _late = True


class WideClaim(LateClaim):
    _wide = True


def claim(
    count: int = 1,
    *,
    wait: Union[None, bool, float, str] = True,
    memory: Optional[Size] = None,
    together: bool = False,
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
    placeholder: Optional[str] = None,
    visible_devices: Optional[str] = None,
    lock_timeout: Union[None, float, str] = None,
    urgent: bool = False,
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
    together: only GPUs that are connected with each other, by NVLink or one PCIe switch.
    min_free_memory, max_used_memory: '20GiB', or bytes (from 1 MiB on); max_used_memory="any": however much is in use.
    allow_processes: share with programs that run on the GPU without a claim.
    max_power: watts. max_utilization: percent. max_temperature: degrees Celsius. allow_unknown: accept those that the driver
        can't tell.
    devices, exclude: indices of nvidia-smi, UUIDs, names, '0-3', or a list of them.
    force: skip health, thresholds and other programs; never leases of others.
    placeholder: 'auto' (default), 'keep' or 'none': how long a small process keeps the GPUs visibly taken.
    visible_devices: 'uuid' (default), or 'index' for software that expects numbers in CUDA_VISIBLE_DEVICES. While other claims
        of this process stand, theirs is the default.
    lock_timeout: how long to wait for another claim's decision, seconds or '2s' (default).
    urgent: go to the front of the queue; only for users whom the machine's configuration lists.
    command: how to start gpu-owner (see `GPU_OWNER_COMMAND`).
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
    count = whole_count(count)
    args = [f"--gpus={count}", *criteria_among(locals())]
    waits = wait_option(wait)
    if waits != "--no-wait":
        args.append(waits)
    if memory is not None:
        args.append(f"--memory={memory}")
    if placeholder is not None:
        args.append(f"--placeholder={placeholder}")
    args += [f"--{option}" for option, flag in (("together", together), ("urgent", urgent)) if flag]
    request = [*args, f"--visible-devices={visible_devices}"]
    form = form_of_names() if visible_devices is None else visible_devices
    if form is not None:
        args.append(f"--visible-devices={form}")
    if lock_timeout is not None:
        if not isinstance(lock_timeout, str) and math.isfinite(lock_timeout):
            lock_timeout = f"{round(lock_timeout * 1000)}ms"
        args.append(f"--lock-timeout={lock_timeout}")
    words = command_words(command)
    with environment.once_lock if once else contextlib.nullcontext():
        earlier = _made_once(count) if once else None
        if earlier is not None:
            return earlier
        refuse_in_children()
        refuse_after_fork()
        origin = Origin(name, _notebook_cell() if name is None and _made is None else None)
        kept = _replace_earlier(made, origin, request)
        if kept is not None:
            return kept
        _tell_of_unreferenced()
        env = claimant_environment(made, count, words)
        holder = Holder(words, args, env, why_hidden(), own_note())
        try:
            holding = Holding(holder, holder.answer(), caller())
            holding.scheduled = made._wide
            if made._wide:
                holding.numbered = can_be_wide(holding, words)
            with environment.lock:
                refuse_mixture(holding)
                refuse_late(holding, made._late)
                holding.numbered = holding.numbered and all_wide()  # others may have limited what CUDA will see meanwhile
                holding.wide = holding.numbered or made._wide and shows_others(cuda_devices())
                join_environment(holding)
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
    with environment.lock:
        shares = {ordinal: one.memory for one in holdings for ordinal in ordinals_of(one)}
    text = os.environ.get("GPU_OWNER_MEMORY", "")
    job = int(text) if text.isdigit() else None
    if not any(shares.values()) and (shares or job is None):
        return None
    torch = import_torch()
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


def _notebook_cell() -> Optional[Tuple[str, int]]:
    """The cell of IPython or Jupyter that runs, as long as its text or its notebook doesn't change, and the number of its execution."""
    try:
        shell = sys.modules["IPython"].get_ipython()
        count = int(shell.execution_count)
        parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
        cell = parent.get("metadata", {}).get("cellId")
        frame: Any = sys._getframe()
        while not cell and frame is not None:
            if frame.f_globals is shell.user_global_ns and frame.f_code.co_name == "<module>":
                cell = re.sub(r"-input-\d+-", "-input-", frame.f_code.co_filename)
            frame = frame.f_back
        return (str(cell), count) if cell else None
    except (KeyError, AttributeError, TypeError):
        return None  # no notebook, or one that is unlike those that are known


def _replace_earlier(made: Claim, origin: Origin, request: List[str]) -> Optional[Claim]:
    """Ends the claims that this one replaces. If it asks for the same, the earlier one stays, and is returned."""
    with environment.lock:
        earlier = [one for one in holdings if one.origin.is_replaced_by(origin)]
    same = [one for one in earlier if one.request == request and one.is_held()][:1]
    for one in earlier:
        if one not in same:
            with environment.lock:
                leave_environment(one)
            one.holder.end()
            show(f"gpu-owner: released {one.describe_gpus()}, which {origin} had claimed at {one.place}.\n")
    for one in same:
        kept = one.claim() if one.claim is not None else None
        if kept is None:
            made._hold(one)
        show(f"gpu-owner: {origin} has claimed {one.describe_gpus()} already, and keeps it.\n")
        return kept or made
    return None


def _tell_of_unreferenced() -> None:
    with environment.lock:
        forgotten = [one for one in holdings if one.kept is None and one.claim is not None and one.claim() is None and not one.is_told]
    for one in forgotten:
        one.is_told = True
        show(
            f"gpu-owner: this process still holds {one.describe_gpus()}, claimed at {one.place}. Nothing refers to that claim any more, "
            "so it lasts until the process ends.\n"
        )


def _made_once(count: int) -> Optional[Claim]:
    """The claim that an earlier call with `once` has made, if it stands."""
    for earlier in [one.kept for one in holdings if one.kept is not None and one.kept._once]:
        if not earlier.held:
            earlier.release()  # its `gpu-owner hold` was killed; CUDA_VISIBLE_DEVICES must not show its GPUs
        elif len(earlier) == count:
            return earlier
        else:
            raise UsageError(f"once: this process has claimed {len(earlier)} GPU(s) already, not {count}; release() that claim first")
    return None


def _release_all() -> None:
    for made in reversed(list(holdings)):
        try:
            with environment.lock:
                leave_environment(made)
            made.holder.end()
        except Exception as error:  # the next one must be released all the same
            show(f"gpu_owner: {error}\n")
    for holder in list(holders):
        holder.end()


atexit.register(_release_all)
