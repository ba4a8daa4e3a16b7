"""
Calls of Python functions, each on GPUs of its own.

Each worker is a process that `gpu-owner run` starts (`worker.py`), with a thread here that claims, sends calls and waits for their
results. A call is taken from the pool's list only by a worker that has its GPUs.
"""

from __future__ import annotations

import atexit
import collections
import concurrent.futures
import functools
import itertools
import os
import threading
import time
import weakref
from multiprocessing import process, spawn

from .command import command_words, own_command, read_json
from .criteria import criteria_among, request_words, whole_count
from .errors import GPUOwnerError, UsageError
from .worker import Pickler, run_chunk
from .worker_thread import MAX_QUEUE_AGE_S, Call, Worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, Optional, Set, Tuple, Type, TypeVar, Union

    from .criteria import Command, Selector, Size

    _T = TypeVar("_T")

_executors: weakref.WeakSet[Executor] = weakref.WeakSet()


def _own_note() -> str:
    return "".join(letter if letter.isprintable() else " " for letter in own_command())[:150].strip()


class Executor(concurrent.futures.Executor):
    """
    Runs functions in processes that have GPUs of their own. Calls wait in the machine's queue until GPUs are free.

        with Executor(gpus=1, max_workers=4) as pool:
            for config, loss in zip(configs, pool.map(train, configs)): ...

    gpus: how many GPUs each call has: `cuda:0` and so on. max_workers: how many calls run at a time, at most; by default as many as the
        machine has GPUs for. A worker keeps its GPUs from call to call. The worker gives them back when another request waits for
        them, and when it has had no call for 30 seconds.
    retries: how often a call is run again whose worker died; otherwise its future raises WorkerDiedError.
    preemptible: use GPUs that would be idle. A call that is interrupted is run again. grace: how long it has to end then.
    idle, time_limit: as for `submit`, for each worker: a call that it ends raises WorkerDiedError.
    initializer, initargs: called in each worker before its first call.
    output: a file for what workers print ('%n' is the worker's number); by default it is printed here, each line with that number.
    wait: True (default) until GPUs are free, or at most this time: then all waiting calls raise WaitTimeoutError.
    name, note: which other users see. Other parameters are those of `claim`.

    Functions, arguments and results are pickled; with cloudpickle installed, functions of a notebook and lambdas will do.
    """

    def __init__(
        self,
        gpus: int = 1,
        max_workers: Optional[int] = None,
        initializer: Optional[Callable[..., Any]] = None,
        initargs: Tuple[Any, ...] = (),
        *,
        retries: int = 0,
        output: Union[None, str, os.PathLike[str]] = None,
        name: Optional[str] = None,
        note: Optional[str] = None,
        time_limit: Union[None, float, str] = None,
        idle: Union[None, float, str] = None,
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
        urgent: bool = False,
        preemptible: bool = False,
        grace: Union[None, float, str] = None,
        command: Optional[Command] = None,
    ) -> None:
        if getattr(process.current_process(), "_inheriting", False):
            raise UsageError(
                "Executor: this is a worker that imports the main module, to find its functions. Put what starts calls there under "
                "`if __name__ == '__main__':`"
            )
        self._words = command_words(command)
        note = _own_note() if note is None else note
        self._args = request_words(locals())
        if max_workers is None:
            max_workers = max(1, len(read_json(self._words, ["status", "--json", *criteria_among(locals())])) // max(1, gpus))
        self._max_workers = whole_count(max_workers, "max_workers")
        if self._max_workers < 1:
            raise UsageError("max_workers: it must be at least 1")
        self._retries = retries
        self._output = None if output is None else os.path.abspath(output)
        main: Dict[str, Any] = spawn.get_preparation_data("gpu-owner worker")
        main["authkey"] = bytes(main["authkey"])  # as it refuses to be pickled
        if not os.path.exists(main.get("init_main_from_path", "/")):
            del main["init_main_from_path"]  # '<stdin>'
        self._pickler = Pickler("init_main_from_name" in main or "init_main_from_path" in main)
        self._setup = {
            "main": main,
            "has_main": self._pickler.has_main,
            "initializer": self._pickler.dumps((initializer, initargs), "initializer", initializer),
            "errors": os.environ.get("GPU_OWNER_ERRORS"),
        }
        self._owner = os.getpid()
        self._changed = threading.Condition()
        self._calls: Deque[Call] = collections.deque()
        self._workers: List[Worker] = []
        self._is_shut_down = False
        self._numbers = itertools.count(1)
        self._wanted: Tuple[float, List[Any]] = (0.0, [])  # the GPUs that other requests wait for, and how long this answer counts
        self._queue_lock = threading.Lock()
        _executors.add(self)

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[_T]:
        """Has `fn(*args, **kwargs)` called in a worker."""
        name = str(getattr(fn, "__qualname__", fn))
        call = Call(self._pickler.dumps((fn, args, kwargs), f"the call of {name}", fn), name, self._retries)
        with self._changed:
            if self._is_shut_down or self._owner != os.getpid():
                why = "after shutdown" if self._is_shut_down else "in a forked child of the process that made the Executor"
                raise RuntimeError(f"cannot submit calls {why}")
            self._calls.append(call)
            free = sum(worker.call is None for worker in self._workers)
            if free < len(self._calls) and len(self._workers) < self._max_workers:
                self._workers.append(Worker(self, next(self._numbers)))
                self._workers[-1].start()
            self._changed.notify_all()
        return call.future

    def map(
        self, fn: Callable[..., _T], *iterables: Iterable[Any], timeout: Optional[float] = None, chunksize: int = 1, **options: Any
    ) -> Iterator[_T]:
        """As of concurrent.futures: results in the order of the arguments. chunksize: how many calls a worker gets at once."""
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if chunksize == 1:
            return super().map(fn, *iterables, timeout=timeout, **options)
        arguments = zip(*iterables)
        chunks = iter(lambda: list(itertools.islice(arguments, chunksize)), [])
        results = super().map(functools.partial(run_chunk, fn), chunks, timeout=timeout, **options)
        return itertools.chain.from_iterable(results)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the workers when all calls have ended. cancel_futures: without those that haven't started. wait: until GPUs are free."""
        with self._changed:
            self._is_shut_down = True
            if cancel_futures:
                self._cancel_waiting()
            workers = list(self._workers)
            self._changed.notify_all()
        if wait and self._owner == os.getpid():
            for worker in workers:
                worker.join()

    def terminate_workers(self) -> None:
        """Ends all calls and workers: SIGTERM, and SIGKILL after 10 seconds."""
        with self._changed:
            self._is_shut_down = True
            self._cancel_waiting()
            for worker in self._workers:
                worker.is_terminated = True
            self._changed.notify_all()
        self.shutdown()

    def __exit__(self, kind: Optional[Type[BaseException]], *_: Any) -> None:
        """Waits for all calls. After Ctrl-C it ends them."""
        if kind is not None and issubclass(kind, (KeyboardInterrupt, SystemExit)):
            self.terminate_workers()
            return
        try:
            self.shutdown()
        except KeyboardInterrupt:
            self.terminate_workers()
            raise

    def _cancel_waiting(self) -> None:
        for call in self._calls:
            call.future.cancel()
            call.future.set_running_or_notify_cancel()
        self._calls.clear()

    def _take(self) -> Optional[Call]:
        """The next call that wasn't cancelled."""
        with self._changed:
            while self._calls:
                call = self._calls.popleft()
                if call.future.running() or call.future.set_running_or_notify_cancel():
                    return call
        return None

    def _put_back(self, call: Call) -> None:
        with self._changed:
            self._calls.appendleft(call)
            self._changed.notify_all()

    def _fail_waiting(self, error: BaseException) -> None:
        """Workers can't start, and none is left that could run the calls."""
        while True:
            call = self._take()
            if call is None:
                return
            call.future.set_exception(error)

    def _others_wait(self, gpus: List[str]) -> bool:
        """Whether a request that isn't of this pool waits for one of these GPUs."""
        with self._queue_lock:
            good_until, wanted = self._wanted
            asked = time.monotonic()
            if asked > good_until:
                own = self._pids()
                try:
                    queue = read_json(self._words, ["queue", "--json"])
                except GPUOwnerError:
                    queue = []
                own |= self._pids()
                wanted = [gpu for one in queue if one["pid"] not in own and not one["stopped"] for gpu in one["waitingFor"]]
                # Short calls aren't to spend more than a twentieth of their time on this question.
                now = time.monotonic()
                self._wanted = (now + max(MAX_QUEUE_AGE_S, 20 * (now - asked)), wanted)
        return any(gpu["uuid"] in gpus or str(gpu["index"]) in gpus for gpu in wanted)

    def _pids(self) -> Set[int]:
        """The requests and leases of this pool."""
        return {worker.process.pid for worker in list(self._workers) if worker.process is not None}


def _finish_all() -> None:
    """As of concurrent.futures: a program ends when the calls of its pools have ended."""
    for pool in list(_executors):
        if pool._owner == os.getpid():
            pool.shutdown()


getattr(threading, "_register_atexit", atexit.register)(_finish_all)
