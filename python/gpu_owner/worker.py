"""
A worker of an Executor: a process on GPUs of its own, which runs one call after the other. `gpu-owner run` starts it.

Messages are byte strings on a connection. From the Executor: the setup, then calls; an empty one ends the worker. From the worker: READY
(or FAILED and why), then STARTED and the result of each call.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

READY, STARTED, RETURNED, RAISED, FAILED = b"0", b"1", b"2", b"3", b"4"


class RemoteTraceback(Exception):
    """The traceback of an error in a worker: the cause of the error that `Future.result()` raises."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class Pickler:
    """Pickles for another process. Where pickle fails, cloudpickle does it, if it is installed."""

    def __init__(self, has_main: bool) -> None:
        self.has_main = has_main  # whether the other process can import the main module of the Executor's

    def dumps(self, value: Any, what: str, function: Optional[Callable[..., Any]] = None) -> bytes:
        in_notebook = not self.has_main and getattr(function, "__module__", None) == "__main__"
        problem: Exception
        if in_notebook:
            problem = ValueError("it is defined in a notebook, or in a program without a file, which a worker can't import")
        else:
            try:
                return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
            except Exception as error:  # objects raise what they like
                problem = error
        try:
            import cloudpickle
        except ImportError:
            raise pickle.PicklingError(
                f"{what} can't be sent to another process: {problem}. Use a function of a module, and arguments and results that pickle "
                "can write; or install cloudpickle (pip install cloudpickle), with which functions of a notebook and lambdas will do"
            ) from problem
        try:
            return bytes(cloudpickle.dumps(value, pickle.HIGHEST_PROTOCOL))
        except Exception as error:
            raise pickle.PicklingError(f"{what} can't be sent to another process: {error}") from error


def run_chunk(function: Callable[..., Any], chunk: List[Tuple[Any, ...]]) -> List[Any]:
    return [function(*args) for args in chunk]


def main(connection_number: int, lifeline: int) -> None:
    """Runs calls until the Executor ends the worker, or its process ends."""
    import threading
    from multiprocessing.connection import Connection

    os.set_inheritable(connection_number, False)
    os.set_inheritable(lifeline, False)
    os.setpgid(0, 0)  # the worker and what it starts can be killed together
    threading.Thread(target=_end_with_executor, args=(lifeline,), daemon=True).start()
    connection = Connection(connection_number)
    try:
        setup = pickle.loads(connection.recv_bytes())
        _prepare(setup)
    except BaseException as error:
        connection.send_bytes(FAILED + _pickled_error(error, Pickler(False)))
        return
    pickler = Pickler(setup["has_main"])
    connection.send_bytes(READY + pickle.dumps((os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))))
    while True:
        try:
            call = connection.recv_bytes()
        except (EOFError, OSError):
            return
        if not call:
            return
        connection.send_bytes(STARTED)
        answer = _answer(call, pickler)
        del call
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            connection.send_bytes(answer)
        except OSError:
            return


def _end_with_executor(lifeline: int) -> None:
    """Ends this process and its children with the process of the Executor, however that ends."""
    os.read(lifeline, 1)
    os.killpg(0, signal.SIGKILL)


def _prepare(setup: Dict[str, Any]) -> None:
    from multiprocessing import process, spawn

    os.environ.pop("GPU_OWNER_ERRORS", None)
    if setup["errors"] is not None:
        os.environ["GPU_OWNER_ERRORS"] = setup["errors"]
    if setup["output"] is not None:
        descriptor = os.open(setup["output"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        for standard in (1, 2):
            os.dup2(descriptor, standard)
        os.close(descriptor)
    current: Any = process.current_process()
    current._inheriting = True  # an Executor of a main module without a guard refuses to start then
    try:
        spawn.prepare(setup["main"])
    finally:
        del current._inheriting
    function, args = pickle.loads(setup["initializer"])
    if function is not None:
        function(*args)


def _answer(call: bytes, pickler: Pickler) -> bytes:
    try:
        try:
            function, args, named = pickle.loads(call)
        except Exception as error:
            raise pickle.UnpicklingError(
                f"the call can't be read in the worker: {type(error).__name__}: {error}. Functions and classes must be in a module that "
                "the worker can import, or outside of `if __name__ == '__main__':`"
            ) from error
        result = function(*args, **named)
        return RETURNED + pickler.dumps(result, f"what {getattr(function, '__qualname__', function)} returned", type(result))
    except BaseException as error:
        return RAISED + _pickled_error(error, pickler)


def _pickled_error(error: BaseException, pickler: Pickler) -> bytes:
    import traceback

    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    error.__traceback__ = None
    try:
        data = pickler.dumps((error, text), "the error", type(error))
        pickle.loads(data)  # an __init__ of its own may not take what pickle gives it
        return data
    except Exception:
        return pickle.dumps((RuntimeError(f"{type(error).__name__}: {error}"), text))


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [os.path.dirname(here), *(entry for entry in sys.path if entry != here)]
    from gpu_owner.worker import main as run

    run(int(sys.argv[1]), int(sys.argv[2]))
