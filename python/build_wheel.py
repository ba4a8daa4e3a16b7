"""
Makes wheels with nothing but the standard library.

As a build backend (PEP 517) it lets pip install the package gpu_owner alone, for the command of a clone or of npm. Called as a program,
build_wheel.py TAG LAUNCHER TREE DIRECTORY LEVEL, it makes the wheel that brings the command, with its Node.js: TREE becomes
PREFIX/lib/gpu-owner, LAUNCHER PREFIX/bin/gpu-owner. build_wheel.py DIRECTORY makes gpu-owner-client, the package alone.
"""

import base64
import hashlib
import itertools
import json
import os
import pathlib
import re
import stat
import sys
import zipfile
from typing import Any, Iterator, Tuple

HERE = os.path.dirname(os.path.abspath(__file__))
File = Tuple[str, bytes, bool]
"""Path in the wheel, content, whether it is a program."""


def _read(path: str) -> bytes:
    with open(os.path.join(HERE, path), "rb") as file:
        return file.read()


VERSION = re.findall(rb'(?m)^__version__ = "(.+)"$', _read("gpu_owner/__init__.py"))[0].decode()


def _urls() -> str:
    """Where the project is, as package.json of the clone says."""
    try:
        package = json.loads(_read("../package.json"))
    except FileNotFoundError:
        return ""
    source = re.sub(r"^git\+|\.git$", "", package.get("repository", {}).get("url", ""))
    urls = {"Source": source, "Documentation": source and f"{source}/tree/main/docs", "Homepage": package.get("homepage")}
    return "".join(f"Project-URL: {label}, {url}\n" for label, url in urls.items() if url)


def _metadata(project: str) -> str:
    return f"""\
Metadata-Version: 2.1
Name: {project}
Version: {VERSION}
Summary: Exclusive use of NVIDIA GPUs on a shared machine
License: MIT
Requires-Python: >=3.8
Classifier: Operating System :: POSIX :: Linux
Description-Content-Type: text/markdown
{_urls()}
{_read("README.md").decode()}"""


ENTRY_POINTS = b"""\
[submitit]
executor = gpu_owner.submitit_plugin:GPUOwnerExecutor
job_environment = gpu_owner.submitit_plugin:GPUOwnerJobEnvironment
"""

# The same sources make the same wheel.
TIME = (2020, 1, 1, 0, 0, 0)


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: Any = None) -> str:
    return _write(wheel_directory, "gpu-owner", "py3-none-any", iter(()), 9)


def _write(directory: str, project: str, tag: str, others: Iterator[File], level: int) -> str:
    base = f"{project.replace('-', '_')}-{VERSION}"
    info = f"{base}.dist-info"
    pure = str(tag.endswith("-any")).lower()
    wheel = f"Wheel-Version: 1.0\nGenerator: gpu-owner\nRoot-Is-Purelib: {pure}\nTag: {tag}\n"
    name = f"{base}-{tag}.whl"
    record = []
    with zipfile.ZipFile(os.path.join(directory, name), "w", zipfile.ZIP_DEFLATED) as archive:

        def add(path: str, data: bytes, is_program: bool = False) -> None:
            entry = zipfile.ZipInfo(path, TIME)
            entry.external_attr = (stat.S_IFREG | (0o755 if is_program else 0o644)) << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED, level)
            record.append(f"{path},sha256={_digest(data)},{len(data)}")

        for file in itertools.chain(_package(), others):
            add(*file)
        add(f"{info}/METADATA", _metadata(project).encode())
        add(f"{info}/WHEEL", wheel.encode())
        add(f"{info}/entry_points.txt", ENTRY_POINTS)
        add(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]).encode())
    return name


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _package() -> Iterator[File]:
    for path in sorted(pathlib.Path(HERE, "gpu_owner").glob("**/*")):
        if path.suffix in (".py", ".typed"):
            yield str(path.relative_to(HERE)), path.read_bytes(), False


def _command(launcher: str, tree: str) -> Iterator[File]:
    yield f"gpu_owner-{VERSION}.data/scripts/gpu-owner", _read(os.path.abspath(launcher)), True
    for directory, names, files in os.walk(tree):
        names.sort()
        for name in sorted(files):
            path = os.path.join(directory, name)
            place = os.path.relpath(path, tree)
            data = _read(os.path.abspath(path))
            yield f"gpu_owner-{VERSION}.data/data/lib/gpu-owner/{place}", data, os.access(path, os.X_OK)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(_write(sys.argv[1], "gpu-owner-client", "py3-none-any", iter(()), 9))
        sys.exit()
    TAG, LAUNCHER, TREE, DIRECTORY, LEVEL = sys.argv[1:]
    print(_write(DIRECTORY, "gpu-owner", TAG, _command(LAUNCHER, TREE), int(LEVEL)))
