"""Finds and runs the command `gpu-owner`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from .environment import outer_environment
from .errors import CommandNotFoundError, GPUOwnerError, UsageError
from .messages import NOT_FOUND, Messages, cannot_start, error_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence, Tuple

    from .criteria import Command


def command_words(command: Optional[Command]) -> List[str]:
    """
    The words that start gpu-owner: `command`, else GPU_OWNER_COMMAND, the one that this file was installed with (the PATH of a
    notebook's kernel lacks its environment's programs), `gpu-owner` in PATH, or one in a usual place.
    """
    if os.name == "nt":
        raise GPUOwnerError(
            "GPUs can be claimed on Linux only. On Windows, run the program in WSL 2 (docs/where-it-runs.md); task() and result() work "
            "here",
            code="ERR_UNSUPPORTED_PLATFORM",
        )
    given = command if command is not None else os.environ.get("GPU_OWNER_COMMAND") or None
    if given is not None:
        import shlex

        words = [os.fspath(given)] if isinstance(given, os.PathLike) else given
        if isinstance(words, str):
            words = [words] if os.path.exists(words) else shlex.split(words)
        words = [os.fspath(word) for word in words]
        if not words:
            raise UsageError("command: it is empty; use '/usr/local/bin/gpu-owner' or ['npx', 'gpu-owner']")
        return words
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # PREFIX/lib/pythonX.Y/site-packages
    prefix = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    installed = os.path.join(prefix, "bin", "gpu-owner")
    if os.path.exists(os.path.join(prefix, "lib", "gpu-owner")) and os.access(installed, os.X_OK):
        return [installed]
    for directory in os.get_exec_path():
        found = os.path.join(directory, "gpu-owner")
        if os.path.isfile(found) and os.access(found, os.X_OK):
            return [found]
    beside = os.path.join(os.path.dirname(here), "bin", "gpu-owner.cjs")
    usual = ("/usr/local/bin/gpu-owner", "/opt/gpu-owner/bin/gpu-owner.cjs", os.path.expanduser("~/.local/bin/gpu-owner"))
    for path in (beside, *usual):
        if os.access(path, os.X_OK):
            return [path]
    raise CommandNotFoundError(NOT_FOUND.format("The command 'gpu-owner' isn't in PATH"))


def own_command() -> str:
    """The name that others see as the holder: this program, and not its `gpu-owner hold`."""
    words = getattr(sys, "orig_argv", None) or [sys.executable or "python", *sys.argv]
    program = " ".join([os.path.basename(words[0]), *words[1:]]).replace("\0", " ")
    return f"{program[:400]} (pid {os.getpid()})"


def run_command(
    command: Sequence[str], args: Sequence[str], env: Optional[Dict[str, str]] = None, cwd: Optional[str] = None
) -> Tuple[int, bytes, Messages]:
    """Runs the command to its end: its exit code, output, and messages."""
    try:
        done = subprocess.run(
            [*command, *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=outer_environment() if env is None else env,
            cwd=cwd,
        )
    except (OSError, ValueError) as error:
        raise cannot_start(command, error) from error
    messages = Messages()
    messages.feed(done.stderr, final=True)
    return done.returncode, done.stdout, messages


def output_of(
    command: Sequence[str],
    args: Sequence[str],
    env: Optional[Dict[str, str]] = None,
    cwd: Optional[str] = None,
    count: str = "count",
) -> bytes:
    """Runs the command to its end, and raises its error if it fails."""
    code, output, messages = run_command(command, args, env, cwd)
    if code != 0:
        raise error_of(code, messages.take(), command, count)
    messages.show()
    return output


def read_json(command: Sequence[str], args: Sequence[str]) -> Any:
    output = output_of(command, args)
    try:
        return json.loads(output.decode())
    except ValueError as error:
        import shlex

        raise GPUOwnerError(f"'{shlex.join([*command, *args])}' printed no JSON: is it gpu-owner?") from error
