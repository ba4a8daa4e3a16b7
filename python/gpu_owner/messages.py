"""Messages of the command on standard error, and its errors in the words of this package."""

from __future__ import annotations

import codecs
import json
import re
import sys

from .criteria import CRITERIA
from .errors import CLASSES, EXIT_CODES, CommandNotFoundError, GPUOwnerError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Sequence, TextIO, Union

PREFIX = "gpu-owner: "
ERROR = '{"error":'  # with GPU_OWNER_ERRORS=json
NOT_FOUND = (
    "{}. Install it (uv tool install gpu-owner), or say where it is: the environment variable "
    "GPU_OWNER_COMMAND=/path/to/bin/gpu-owner.cjs, or claim(command=...); a list such as ['npx', 'gpu-owner'] will do. "
    "It needs Node.js in PATH, or GPU_OWNER_NODE with its path."
)
# Besides those of `criteria_words`.
_OPTIONS = (
    "placeholder",
    "visible_devices",
    "lock_timeout",
    "memory",
    "together",
    "urgent",
    "preemptible",
    "idle",
    "wait",
    "name",
    "note",
    "after_ok",
    "after",
    "output",
    "notify",
    "signal",
    "grace",
    "timeout",
)


def error_of(exit_code: int, output: str, command: Sequence[str], count: str = "count", hidden: str = "") -> GPUOwnerError:
    message = output.strip()
    if message.startswith(ERROR):
        error = json.loads(message.splitlines()[0])["error"]
        code, message = error["code"], error["message"]
        if hidden and error.get("hidden"):  # GPUs that CUDA_VISIBLE_DEVICES leaves out, which this module has set for `hold`
            message = f"{message}\n{hidden}."
    else:
        code = EXIT_CODES.get(exit_code, "ERR_INTERNAL")
        if message.startswith(PREFIX):
            message = message[len(PREFIX) :]
    import shlex

    kind = CLASSES.get(code, GPUOwnerError)
    message = _in_python(message, count) or f"'{shlex.join(command)}' ended with {_describe_exit(exit_code)} and said nothing"
    if kind is CommandNotFoundError and "GPU_OWNER_NODE" not in message:
        message = NOT_FOUND.format(message)
    return kind(message, exit_code, code)


def cannot_start(command: Sequence[str], error: Union[OSError, ValueError]) -> GPUOwnerError:
    if isinstance(error, ValueError):
        return UsageError(f"an argument or a variable can't be passed to '{command[0]}': {error}")
    return CommandNotFoundError(NOT_FOUND.format(f"'{command[0]}' can't be started: {error.strerror}"))


def _describe_exit(exit_code: int) -> str:
    return f"exit code {exit_code}" if exit_code >= 0 else f"signal {-exit_code}"


def _in_python(message: str, count: str) -> str:
    """Options as they are called here: `--max-power` is `max_power`."""
    message = re.sub(r"(?m)(?<![\w-])-n(?= |:)", count, message)
    message = re.sub(r"(?<![\w-])--for(?![\w-])", "time_limit", message)
    options = "|".join((*CRITERIA, *_OPTIONS)).replace("_", "-")
    return re.sub(rf"(?<![\w-])--({options})(?![\w-])", lambda match: match.group(1).replace("-", "_"), message)


class Messages:
    """
    Reads what the command says on standard error. Messages are shown as they come, except the last one of a command that fails:
    that becomes the exception. Whether it is the last is known a moment later.
    """

    PAUSE = 0.1

    def __init__(self, note: str = "") -> None:
        self._note = note  # for the first message about a wait
        self.is_quiet = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""  # from the beginning of the last message on
        self._shown = 0  # how much of it is shown

    @property
    def pending(self) -> bool:
        return len(self._text) > self._shown and not self._text.startswith(ERROR)

    def feed(self, data: bytes, final: bool = False) -> None:
        self._text += self._decoder.decode(data, final)
        start = max(self._text.rfind("\n" + beginning) for beginning in (PREFIX, ERROR)) + 1
        if start > 0:
            self._tell(self._text[self._shown : start])
            self._text, self._shown = self._text[start:], max(0, self._shown - start)

    def show(self) -> None:
        if self.pending:
            self._tell(self._text[self._shown :])
            self._shown = len(self._text)

    def _tell(self, text: str) -> None:
        if self.is_quiet:
            return
        show(text)
        if self._note and text.startswith(f"{PREFIX}waiting"):
            show(self._note)
            self._note = ""

    def take(self) -> str:
        """The last message, which is not shown any more."""
        self._shown = len(self._text)
        return self._text


def show(text: str, stream: Optional[TextIO] = None) -> None:
    stream = stream or sys.stderr
    if text and stream is not None:
        try:
            stream.write(text)
            stream.flush()
        except (OSError, ValueError):
            pass  # it can't be written
