"""Jobs in the background."""

from __future__ import annotations

import operator
import os
import re

from .command import command_words, output_of, read_json, run_command
from .criteria import duration_word, request_words
from .environment import outer_environment
from .errors import UsageError
from .messages import ERROR, error_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

    from .criteria import Command, Selector, Size
    from .records import Job as Record

    Path = Union[str, "os.PathLike[str]"]
    Jobs = Union[int, str, "Job", Iterable[Union[int, str, "Job"]]]


def _job_number(value: Any) -> int:
    try:
        return int(value) if isinstance(value, str) else operator.index(value)
    except TypeError:
        raise UsageError(f"Job: {value!r} is not the number or the name of a job; use Job(12) or Job('train')") from None


class Job:
    """
    A job in the background: what `submit` returns, or `Job(12)` or `Job("train")` for one of this user's that exists. The
    methods ask the command each time.

    id: its number, or its name. command: as for `claim`.
    """

    def __init__(self, id: Union[int, str], *, command: Optional[Command] = None) -> None:
        self._words = command_words(command)
        self.id = self._named(id) if isinstance(id, str) and not re.match(r"[0-9]{1,9}\Z", id) else _job_number(id)

    def _named(self, name: str) -> int:
        """The number of a job of this machine by its name."""
        if not re.match(r"(?![0-9]+_[0-9]+\Z)[^\s:,/-][^\s:,/]*\Z", name):
            raise UsageError(f"Job: {name!r} is not the number or the name of a job of this machine; use Job(12) or Job('train')")
        [found] = read_json(self._words, ["jobs", "--json", "--", name])
        return _job_number(found["id"])

    def wait(self, timeout: Union[None, float, str] = None) -> int:
        """
        Waits until it has ended, and returns its exit code: 128 + N if signal N ended it, 124 at its time limit, 143 if it was
        cancelled before it started, 137 if it was lost. timeout: seconds or '10m'; then it raises WaitTimeoutError, and the job goes on.
        """
        limit = [] if timeout is None else [f"--timeout={duration_word(timeout, 'timeout')}"]
        code, _, messages = run_command(self._words, ["wait", str(self.id), *limit])
        message = messages.take()
        if message.startswith(ERROR) or code < 0:  # `wait` was killed, and the job goes on
            raise error_of(code, message, self._words)
        if code in (126, 127):
            self.info()  # raises if it is the command that can't be run, and not the job's
        return code

    def cancel(self, grace: Union[None, float, str] = None) -> None:
        """
        Ends it: SIGTERM to all its processes, and SIGKILL after `grace` (seconds or '1m'; 10 s). Returns when it has ended, also if it
        had before. Raises GPUOwnerError if something of it can't be ended.
        """
        limit = [] if grace is None else [f"--grace={duration_word(grace, 'grace')}"]
        code, _, messages = run_command(self._words, ["cancel", str(self.id), *limit])
        message = messages.take()
        if code != 0:
            raise error_of(code, message, self._words)

    def extend(self, by: Union[float, str]) -> None:
        """Lets it run longer than its time limit. by: seconds or '2h'. Raises GPUOwnerError if it may not, or has ended."""
        output_of(self._words, ["jobs", "extend", str(self.id), duration_word(by, "by")])

    def log(self, lines: Optional[int] = None) -> str:
        """The job's output so far, standard output and error together. lines: only this many of the last lines."""
        last = [] if lines is None else [f"--lines={operator.index(lines)}"]
        return output_of(self._words, ["logs", str(self.id), *last]).decode("utf-8", "replace")

    def info(self) -> Record:
        """The job's entry in `gpu-owner jobs --json`."""
        jobs: List[Record] = read_json(self._words, ["jobs", "--all", "--json"])
        for one in jobs:
            if one["id"] == self.id:
                return one
        raise UsageError(f"you have no job {self.id} on this machine; `gpu-owner jobs --all` lists those that you have")

    @property
    def state(self) -> str:
        """'waiting', 'running', 'completed', 'failed', 'cancelled' or 'lost'."""
        return self.info()["state"]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Job({self.id})"


def submit(
    words: Sequence[Path],
    *,
    gpus: int = 1,
    name: Optional[str] = None,
    note: Optional[str] = None,
    after: Optional[Jobs] = None,
    after_ok: Optional[Jobs] = None,
    array: Optional[str] = None,
    retry: Union[None, int, str] = None,
    time_limit: Union[None, float, str] = None,
    idle: Union[None, float, str] = None,
    signal: Optional[str] = None,
    output: Optional[Path] = None,
    notify: bool = False,
    cwd: Optional[Path] = None,
    env: Optional[Mapping[str, str]] = None,
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
) -> Job:
    """
    Runs a program in the background as soon as enough GPUs are free. The job goes on when this process has ended, and after you
    log out.

        job = submit(["python", "train.py", "--lr", "0.1"], gpus=2, name="train", time_limit="4h")
        job.wait()

    words: the program and its arguments; no shell reads them. gpus: how many GPUs.
    name, note: which other users see.
    after: jobs (a Job, a number, a name, or a list of them) that must have ended before; after_ok: those that must have ended with
        exit code 0, otherwise this one is cancelled.
    array: parts of an array, such as '0-99%4': each has its own GPUs, and its number in GPU_OWNER_ARRAY_ID.
    retry: how often it is started again if it fails; '9:75': only if it ended with exit code 75.
    time_limit: seconds or '4h', after which it is ended; signal: 'USR1@5m' is sent 5 minutes before.
    idle: seconds or '1h', after which it is ended if its GPUs did nothing meanwhile.
    output: a file that its output is appended to ('%j' is its number, '%n' its name); by default one that `Job.log()` reads, too.
    notify: notify you when the job starts and ends, as the configuration says.
    cwd: where it starts (here). env: all of its environment (this process's, without what claims have changed).
    preemptible: use GPUs that would be idle, and wait again when another request needs them. grace: how long it has to end then,
        seconds or '30s' (default); signal: 'USR1' is sent in place of SIGTERM.
    wait: True (default) until GPUs are free, or for at most this time. Other parameters are those of `claim`.

    Raises UsageError for what can never run, NoDriverError, CommandNotFoundError, or else GPUOwnerError. There is no job then.
    """
    program, number = submitted(locals())
    return Job(int(number), command=program)


def submitted(options: Mapping[str, Any], on: Optional[str] = None) -> Tuple[List[str], str]:
    """Submits with the parameters of `submit`, on this or on other machines: the command, and the job's number or address."""
    words, output, cwd = (options[name] for name in ("words", "output", "cwd"))
    if isinstance(words, (str, bytes)) or not words:
        raise UsageError(f"words: {words!r} is not a list of words such as ['python', 'train.py']; a shell's line is ['sh', '-c', line]")
    args = ["submit", *request_words(options)]
    if on is not None:
        args.append(f"--on={on}")
    if output is not None:
        args.append(f"--output={os.fspath(output)}")
    for name in ("after", "after_ok"):
        args += [f"--{name.replace('_', '-')}={word}" for word in _jobs(options[name], name)]
    try:
        args += ["--", *(os.fspath(word) for word in words)]
    except TypeError as error:
        raise UsageError(f"words: all of them must be strings or paths: {error}") from None
    directory = None if cwd is None else os.fspath(cwd)
    if directory is not None and not os.path.isdir(directory):
        raise UsageError(f"cwd: there is no directory {directory!r}")
    program = command_words(options["command"])
    if os.sep in program[0]:
        program[0] = os.path.abspath(program[0])  # the program is started in another directory
    env = options["env"]
    variables = outer_environment() if env is None else {**env, "GPU_OWNER_ERRORS": "json"}
    return program, output_of(program, args, variables, directory, "gpus").decode().strip()


def _jobs(value: Optional[Jobs], name: str) -> List[str]:
    if value is None:
        return []
    try:
        each = [value] if isinstance(value, (int, str, Job)) else list(value)
    except TypeError:
        raise UsageError(f"{name}: {value!r} is neither a job, its number or name, nor a list of them") from None
    return [str(one.id if isinstance(one, Job) else one) for one in each]
