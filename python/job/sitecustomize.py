"""Makes claims of safe-gpu, gpu_lock and GPU Scheduler claims of the job, in Python programs that `gpu-owner run` starts.

PYTHONPATH of a job's command leads here, and Python imports this module when it starts. Does nothing but watch for the import of
one of these packages: their functions that claim and look are then replaced by those of gpu_owner. Numbers of GPUs that a child got
from its parent are translated. Old Pythons read it, too.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
# By the package's name: what is replaced, each with a parameter by which the original is told from another package of this name.
STAND_INS = {
    "safe_gpu": {"GPUOwner": "placeholder_fn", "get_free_gpus": None},
    "gpu_lock": {"lock_gpu": None},
    "gpu_scheduler": {
        "GPUScheduler": "memory_free_threshold_gb",
        "find_free_gpus": "memory_free_threshold_gb",
    },
}


class Finder:
    """Finds modules of these packages as others find them, and replaces names in them after they have run."""

    def find_spec(self, name, path=None, target=None):
        package = next((part for part in name.split(".") if part in STAND_INS and not name.startswith("gpu_owner.")), None)
        if package is None:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                replace_after(spec.loader, STAND_INS[package])
                return spec
        return None


def replace_after(loader, names):
    """Changes the loader instead of wrapping it: inspect, runpy and pkgutil want to know it."""
    execute = getattr(loader, "exec_module", None)

    def exec_module(module):
        execute(module)
        replace(module, names)

    if execute is not None:
        try:
            loader.exec_module = exec_module
        except AttributeError:
            pass  # a module in C, which isn't one of them


def replace(module, names):
    for name, parameter in names.items():
        original = getattr(module, name, None)
        theirs = parameters(original)
        if theirs is None or (parameter is not None and parameter not in theirs):
            continue
        if sys.version_info < (3, 8):
            say("%s.%s claims GPUs beside those of this job: gpu-owner's module needs Python 3.8" % (module.__name__, name))
            return
        stand_in = getattr(gpu_owner(), name)
        if original is stand_in or not set(theirs) <= set(parameters(stand_in)):
            continue
        setattr(module, name, as_called(stand_in, theirs))
        getattr(sys.modules[stand_in.__module__], "replaced", []).append(module)  # GPU Scheduler's bans stay
        tell(module.__name__)


def parameters(function):
    """The names of a function's parameters; None: it is none, or something else."""
    import inspect

    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None


def as_called(stand_in, names):
    """gpu_lock's first parameter was another one in each version."""
    if names[:1] != ["n"]:
        return stand_in
    return lambda n=1, *rest, **options: stand_in(n=n, **dict(zip(names[1:], rest), **options))


def gpu_owner():
    """The module of this gpu-owner: programs of other environments haven't it installed."""
    if "gpu_owner" not in sys.modules:
        from importlib import util

        path = os.path.join(os.path.dirname(HERE), "gpu_owner", "__init__.py")
        spec = util.spec_from_file_location("gpu_owner", path)
        sys.modules["gpu_owner"] = module = util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["gpu_owner"]


def tell(name):
    """Once in a process and its children."""
    if os.environ.get("GPU_OWNER_STAND_IN") is None:
        os.environ["GPU_OWNER_STAND_IN"] = name
        say("%s claims from this job's GPUs, by gpu-owner's module in its place" % name)


def say(text):
    sys.stderr.write("gpu-owner: %s.\n" % text)


def count_as_parent():
    """A GPUScheduler's program may have passed its numbers on as text: f"{gpu_ids[0]}" counts the GPUs that CUDA shows there."""
    claimed = os.environ.get("GPU_OWNER_PYTHON_CLAIM", "")
    suffix = "@" + os.environ.get("GPU_OWNER_JOB", "")
    names = dict(entry.split("=", 1) for entry in claimed.split(",") if "=" in entry)
    numbers = [number.strip() + suffix for number in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if set(numbers) <= set(names):
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names[number] for number in numbers)


def give_way():
    """Imports the module that this one hides, if there is one."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != HERE]
    own = sys.modules.pop(__name__)
    try:
        __import__(__name__)
    except ImportError as error:
        sys.modules[__name__] = own
        if getattr(error, "name", __name__) != __name__:
            raise


if hasattr(sys, "meta_path") and sys.version_info >= (3, 4):
    sys.meta_path.insert(0, Finder())
count_as_parent()
give_way()
