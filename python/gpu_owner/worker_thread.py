"""A worker of an Executor, as the process of the Executor sees it: a thread, and the process that it starts on GPUs."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing import spawn
from multiprocessing.connection import Connection

from .environment import outer_environment, start_time
from .errors import GPUOwnerError
from .messages import ERROR, PREFIX, Messages, cannot_start, error_of, show
from .worker import FAILED, READY, RETURNED, STARTED, RemoteTraceback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional, Tuple

    from .executor import Executor

MAX_QUEUE_AGE_S = 1.0  # how long the answer of the wait queue counts, at least
_LOOK_S = 0.2  # how often a thread looks whether its worker lives
_IDLE_S = 30.0  # a worker without calls gives its GPUs back then
_END_S = 10.0  # between SIGTERM and SIGKILL
# Starts `gpu-owner run` so that it ends with the thread that starts it: it may wait in the queue for days.
_WITH_PARENT = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)  # PR_SET_PDEATHSIG, SIGTERM
if os.getppid() == int(sys.argv[1]):
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        print(f"gpu-owner: '{sys.argv[2]}' can't be started: {error.strerror}", file=sys.stderr)
sys.exit(127)
"""


class WorkerDiedError(GPUOwnerError, concurrent.futures.BrokenExecutor):
    """A worker of an Executor ended during a call, or couldn't start. Other calls go on."""

    __module__ = "gpu_owner"
    code = "ERR_WORKER_DIED"


class Call:
    def __init__(self, data: bytes, name: str, retries: int) -> None:
        self.future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self.data = data
        self.name = name
        self.retries = retries


class Worker(threading.Thread):
    """Runs calls in a process on GPUs of its own, which it starts when there are calls, and starts again when it has died."""

    def __init__(self, pool: Executor, number: int) -> None:
        super().__init__(name=f"gpu-owner worker {number}", daemon=True)
        self.pool = pool
        self.number = number
        self.call: Optional[Call] = None
        self.process: Optional[subprocess.Popen[bytes]] = None
        self.pid: Optional[int] = None  # the process that runs calls, when it is ready
        self.started: Optional[str] = None
        self.gpus: List[str] = []
        self.code = 0
        self.is_terminated = False

    def run(self) -> None:
        pool = self.pool
        error: Optional[BaseException] = None
        try:
            while self._wait_for_calls():
                if self.process is None and not self._start():
                    continue
                self.call = pool._take()
                if self.call is not None:
                    self._run_call(self.call)
                    self.call = None
                if self.process is not None and pool._others_wait(self.gpus):
                    self._end()
        except BaseException as raised:
            error = raised
        finally:
            try:
                self._end()
            finally:
                with pool._changed:
                    pool._workers.remove(self)
                    is_last = not pool._workers
                if error is not None and is_last:
                    pool._fail_waiting(error)

    def _wait_for_calls(self) -> bool:
        """Returns when there are calls to run. False: there will be none."""
        pool = self.pool
        since = time.monotonic()
        while True:
            with pool._changed:
                if self.is_terminated or (pool._is_shut_down and not pool._calls):
                    return False
                if pool._calls:
                    return True
                pool._changed.wait(None if self.process is None else MAX_QUEUE_AGE_S)
                if pool._calls or self.process is None:
                    continue
            idle = time.monotonic() - since > _IDLE_S
            if idle or self.process.poll() is not None or pool._others_wait(self.gpus):
                self._end()

    def _start(self) -> bool:
        """Starts a process, and waits until it has its GPUs. False: others have run all calls meanwhile."""
        pool = self.pool
        ours, theirs = socket.socketpair()
        theirs_of_lifeline, self.lifeline = os.pipe()
        program = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "worker.py"), str(theirs.fileno()), str(theirs_of_lifeline)]
        words = [sys.executable, "-I", "-S", "-c", _WITH_PARENT, str(os.getpid()), *pool._words, "run", *pool._args, "--"]
        words += [os.fsdecode(spawn.get_executable()), *subprocess._args_from_interpreter_flags(), *program]  # type: ignore[attr-defined]
        self.connection = Connection(ours.detach())
        try:
            # A session of its own: Ctrl-C at the terminal, or the interrupt of a notebook's cell, is not for it.
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=outer_environment(),
                pass_fds=(theirs.fileno(), theirs_of_lifeline),
                start_new_session=True,
            )
        except OSError as error:
            raise cannot_start(words, error) from error
        finally:
            theirs.close()
            os.close(theirs_of_lifeline)
        self.output = _Output(self.process, self.number)
        self.output.start()
        path = pool._output and pool._output.replace("%n", str(self.number))
        with contextlib.suppress(OSError):  # a worker that has ended already: the answer says why
            self.connection.send_bytes(pickle.dumps({**pool._setup, "output": path}))
        answer = self._receive()
        while answer is None:
            if self.is_terminated or not pool._calls:
                self._end()
                return False
            answer = self._receive()
        if answer[:1] == READY:
            self.output.begin()
            self.pid, self.gpus = pickle.loads(answer[1:])
            self.started = start_time(self.pid)
            return True
        code, message = self._ended()
        if answer[:1] == FAILED:
            failed, text = pickle.loads(answer[1:])
            raise WorkerDiedError(f"a worker can't start: {type(failed).__name__}: {failed}") from RemoteTraceback(text)
        if message.startswith((ERROR, PREFIX)):
            raise error_of(code, message, pool._words, "gpus")
        raise WorkerDiedError(f"a worker can't start: it {describe_end(code)}\n{message}".rstrip())

    def _run_call(self, call: Call) -> None:
        killed = _out_of_memory_kills()
        is_started = False
        answer: Optional[bytes] = b""
        try:
            self.connection.send_bytes(call.data)
            answer = None
        except OSError:
            pass  # the worker has ended before
        while answer is None or answer == STARTED:
            is_started = is_started or answer == STARTED
            if self.is_terminated:
                break
            answer = self._receive()
        if answer:
            try:
                result = pickle.loads(answer[1:])
            except Exception as error:
                call.future.set_exception(pickle.UnpicklingError(f"the result of {call.name} can't be read here: {error}"))
                return
            if answer[:1] == RETURNED:
                call.future.set_result(result)
            else:
                raised, text = result
                raised.__cause__ = RemoteTraceback(text)
                call.future.set_exception(raised)
            return
        pid = self.pid
        self._end()
        if not self.is_terminated:
            if self.output.is_preempted or not is_started:
                self.pool._put_back(call)
                return
            if call.retries > 0:
                call.retries -= 1
                self.pool._put_back(call)
                return
        why = "was ended, as the Executor was" if self.is_terminated else describe_end(self.code)
        if self.code == 128 + signal.SIGKILL and _out_of_memory_kills() > killed:
            why += ", probably out of memory: the kernel killed a process for that meanwhile (dmesg says which)"
        call.future.set_exception(WorkerDiedError(f"{call.name}: its worker (pid {pid}) {why}"))

    def _receive(self) -> Optional[bytes]:
        """The next message of the worker; empty: it has ended; None: nothing yet."""
        assert self.process is not None
        try:
            if self.connection.poll(_LOOK_S):
                return self.connection.recv_bytes()
            if self.process.poll() is None and (self.pid is None or start_time(self.pid) == self.started):
                return None
            if self.connection.poll(0):
                return self.connection.recv_bytes()
        except (EOFError, OSError):
            pass
        return b""

    def _end(self) -> None:
        """Ends the process. Returns when its GPUs are free."""
        if self.process is None:
            return
        asked = time.monotonic()
        is_signalled = False
        if self.pid is not None and not self.is_terminated:
            with contextlib.suppress(OSError):
                self.connection.send_bytes(b"")
        while True:
            if not is_signalled and (self.pid is None or self.is_terminated):
                is_signalled, asked = True, time.monotonic()
                self.process.terminate()  # `gpu-owner run` passes it on
            if self.pid is not None and (start_time(self.pid) != self.started or is_signalled and time.monotonic() - asked > _END_S):
                with contextlib.suppress(OSError):
                    os.killpg(self.pid, signal.SIGKILL)  # with its children
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_LOOK_S)
                break
        self._ended()

    def _ended(self) -> Tuple[int, str]:
        """Waits until nothing of the process is left: its exit code, and its last message."""
        assert self.process is not None
        self.code = self.process.wait()
        message = self.output.finish()
        self.connection.close()
        os.close(self.lifeline)
        self.process = self.pid = None
        return self.code, message


class _Output(threading.Thread):
    """Prints what a process prints: messages about the wait, then lines with the number of the worker."""

    def __init__(self, process: subprocess.Popen[bytes], number: int) -> None:
        super().__init__(name=f"gpu-owner output {number}", daemon=True)
        self.process = process
        self.number = number
        self.messages: Optional[Messages] = Messages()
        self.messages.is_quiet = number > 1  # one of them says for what the pool waits
        self.last = ""
        self.is_preempted = False
        self._lock = threading.Lock()

    def begin(self) -> None:
        """From now on, the worker itself prints."""
        with self._lock:
            self.messages = None

    def finish(self) -> str:
        self.join(_END_S)
        return self.last if self.messages is None else self.messages.take()

    def run(self) -> None:
        import selectors

        streams = selectors.DefaultSelector()
        rests = {}
        for stream, target in ((self.process.stdout, "stdout"), (self.process.stderr, "stderr")):
            assert stream is not None
            streams.register(stream, selectors.EVENT_READ, target)
            rests[target] = b""
        while streams.get_map():
            for key, _ in streams.select():
                data = os.read(key.fd, 65536)
                with self._lock:
                    if self.messages is not None and key.data == "stderr":
                        self.messages.feed(data, final=not data)
                    else:
                        *lines, rests[key.data] = (rests[key.data] + data).split(b"\n")
                        if not data and rests[key.data]:
                            lines.append(rests[key.data])
                        self._print(lines, key.data)
                if not data:
                    streams.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]

    def _print(self, lines: List[bytes], target: str) -> None:
        for line in lines:
            text = line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")  # the last state of a progress bar
            self.is_preempted = self.is_preempted or target == "stderr" and text.startswith(f"{PREFIX}preempted: ")
            show(f"[{self.number}] {text}\n", getattr(sys, target))


def describe_end(code: int) -> str:
    if code == 124:
        return "was ended by time_limit or idle"
    if code <= 128:
        return f"ended with exit code {code}"
    try:
        return f"was killed by signal {code - 128} ({signal.Signals(code - 128).name})"
    except ValueError:
        return f"was killed by signal {code - 128}"


def _out_of_memory_kills() -> int:
    """How many processes the kernel has ended for lack of memory since it started."""
    try:
        with open("/proc/vmstat", "rb") as file:
            return int(file.read().partition(b"oom_kill ")[2].split()[0])
    except (OSError, IndexError, ValueError):
        return 0
