"""The `gpu-owner hold` of each claim, and what forks and exec do to it."""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import subprocess
import threading
import time

from . import environment
from .command import own_command
from .environment import holdings, reset_in_child
from .messages import Messages, cannot_start, error_of, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Sequence

_fork = threading.RLock()


def _before_fork() -> None:
    _fork.acquire()


def _after_fork_in_parent() -> None:
    _fork.release()


def _after_fork_in_child() -> None:
    global _fork
    _fork = threading.RLock()
    for holder in list(holders):
        holder.disown()
    holders.clear()
    reset_in_child()


def _warn_before_exec(name: str) -> None:
    """Has os.exec* say that it ends the claims of this process: their pipes are not passed on."""
    execute = getattr(os, name)

    @functools.wraps(execute)
    def call(*args: Any, **named: Any) -> None:
        with environment.lock:
            lost = [f"{one.describe_gpus()} (claimed at {one.place})" for one in holdings if not one.is_told_of_exec]
            for one in holdings:
                one.is_told_of_exec = True
        if lost:
            show(
                f"gpu-owner: os.{name} ends this process's claim of {', '.join(lost)}: the program that it starts has no GPU. Start that "
                "with subprocess.run, or this one with `gpu-owner run`.\n"
            )
        execute(*args, **named)

    setattr(os, name, call)


for _call in ("execv", "execve"):  # the others call these
    _warn_before_exec(_call)


class Holder:
    """`gpu-owner hold` and the pipe that keeps it going."""

    def __init__(self, command: Sequence[str], args: Sequence[str], env: Dict[str, str], hidden: str = "", note: str = "") -> None:
        self.owner = os.getpid()
        self._hidden = hidden
        self.command = command
        words = [*command, "hold", f"--as={own_command()}", *args]
        self.messages = Messages(note)
        self._input = -1
        self._lock = threading.RLock()
        # No fork in between, or the child would have descriptors that it never closes.
        with _fork:
            theirs, self._input = os.pipe()  # neither is inherited by programs
            holders.add(self)
            try:
                # A session of its own: Ctrl-C at the terminal, or the interrupt of a notebook's cell, is not for it.
                self.process = subprocess.Popen(
                    words,
                    stdin=theirs,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    env=env,
                    start_new_session=True,
                )
            except BaseException as error:
                self._close_input()
                holders.discard(self)
                if isinstance(error, (OSError, ValueError)):
                    raise cannot_start(command, error) from error
                raise
            finally:
                os.close(theirs)

    def answer(self) -> Dict[str, Any]:
        """Waits until the GPUs are held. Raises what the command says if it fails."""
        assert self.process.stdout is not None and self.process.stderr is not None
        out, err = self.process.stdout.fileno(), self.process.stderr.fileno()
        poll = select.poll()
        poll.register(out, select.POLLIN)
        poll.register(err, select.POLLIN)
        answer = b""
        while True:
            ready = dict(poll.poll(1000 * (Messages.PAUSE if self.messages.pending else 1)))
            if not ready:
                self.messages.show()
            if err in ready:
                data = os.read(err, 65536)
                self.messages.feed(data)
                if not data:
                    poll.unregister(err)
            if out in ready:
                data = os.read(out, 65536)
                answer += data
                lines = [line for line in answer.split(b"\n")[:-1] if line.startswith(b"{")]
                if lines:
                    self.drain()
                    return dict(json.loads(lines[0].decode()))
                if not data:
                    break
            if not ready and self.process.poll() is not None:
                break
        code = self.process.wait()
        self.drain(show=False)
        raise error_of(code, self.messages.take(), self.command, hidden=self._hidden)

    def drain(self, show: bool = True) -> None:
        """Reads what the command has said on standard error; doesn't wait for more."""
        stream = self.process.stderr
        if stream is None or stream.closed:
            return
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLIN)
        while poll.poll(0):
            data = os.read(stream.fileno(), 65536)
            if not data:
                break
            self.messages.feed(data)
        if show:
            self.messages.show()

    def is_running(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def end(self) -> None:
        """Ends the hold, and returns when the GPUs are free. Does nothing the second time, or in a forked child."""
        if self.owner != os.getpid():
            return
        with self._lock:
            self._close_input()
            try:
                # The signal, too: a child that was forked past Python may still have the pipe open.
                self._signal(signal.SIGTERM)
                self._wait(5)
            finally:
                self._signal(signal.SIGKILL)
                self._wait(5)  # not longer: a process that hangs in the driver can't end
                holders.discard(self)
                self.drain()
                self._close_outputs()

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        pause = 0.0005
        while self.process.poll() is None and time.monotonic() < end:
            time.sleep(pause)
            pause = min(2 * pause, 0.02)

    def _signal(self, number: int) -> None:
        # Not after it has ended: the number could be another process's by now.
        if self.process.poll() is None:
            try:
                os.killpg(self.process.pid, number)  # with `npx` or a shell, `hold` is a child of what was started
            except ProcessLookupError:
                pass

    def _close_input(self) -> None:
        descriptor, self._input = self._input, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _close_outputs(self) -> None:
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def disown(self) -> None:
        """In a forked child: what is the parent's is let go, without a trace."""
        self._lock = threading.RLock()
        self._close_input()
        process = getattr(self, "process", None)
        if process is not None:
            self._close_outputs()
            process.returncode = 0  # no child of this process: nothing to wait for, nothing to warn of


holders: set[Holder] = set()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
