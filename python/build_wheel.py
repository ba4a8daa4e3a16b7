"""Lets pip install gpu_owner.py: a build backend (PEP 517) that needs nothing but the standard library."""

import base64
import hashlib
import os
import re
import zipfile
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))


def _read(name: str) -> bytes:
    with open(os.path.join(HERE, name), "rb") as file:
        return file.read()


MODULE = _read("gpu_owner.py")
VERSION = re.findall(rb'(?m)^__version__ = "(.+)"$', MODULE)[0].decode()
METADATA = f"""\
Metadata-Version: 2.1
Name: gpu-owner
Version: {VERSION}
Summary: Exclusive use of NVIDIA GPUs on a shared machine, from Python
License: MIT
Requires-Python: >=3.8
Classifier: Operating System :: POSIX :: Linux
Description-Content-Type: text/markdown

{_read("README.md").decode()}"""
WHEEL = """\
Wheel-Version: 1.0
Generator: gpu-owner
Root-Is-Purelib: true
Tag: py3-none-any
"""


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: Any = None) -> str:
    info = f"gpu_owner-{VERSION}.dist-info"
    files = {"gpu_owner.py": MODULE, f"{info}/METADATA": METADATA.encode(), f"{info}/WHEEL": WHEEL.encode()}
    record = [f"{path},sha256={_digest(data)},{len(data)}" for path, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    name = f"gpu_owner-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in files.items():
            wheel.writestr(path, data)
    return name


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
