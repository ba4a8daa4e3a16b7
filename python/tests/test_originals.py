"""gpu_owner in place of the packages that it stands in for: what their users write, run with whole processes.

Where an original can be imported, what it has is compared with what is here; safe-gpu is on PyPI.
"""

import importlib
import importlib.util
import inspect
import json
import os
import pathlib
import sys
import textwrap
import unittest
from typing import Any, Dict

from test_gpu_owner import COMMAND, CUDA, MODULE, OnMachine

sys.path.insert(0, str(MODULE.parent))
import gpu_owner  # noqa: E402

INFINITE = float("inf")
# By module: what can be called, with its parameters and their defaults.
SIGNATURES: Dict[str, Dict[str, Dict[str, Any]]] = {
    "gpu_scheduler": {
        "GPUScheduler": dict(
            memory_free_threshold_gb=20,
            power_threshold_w=80,
            utilization_threshold_percent=1,
            max_wait_time=INFINITE,
            poll_interval=10,
            specific_gpus=None,
            timeout=10,
            num_gpus=1,
            debug_mode=False,
        ),
        "find_free_gpus": dict(memory_free_threshold_gb=1, power_threshold_w=None, utilization_threshold_percent=1),
        "get_gpu_info": {},
        "get_gpu_memory_usage": {},
        "get_gpu_names": {},
        "get_gpu_power_usage": {},
        "get_gpu_utilization": {},
        "get_total_num_gpus": {},
        "is_gpu_locked": dict(gpu_id=inspect.Parameter.empty),
        "get_lock_path": dict(gpu_id=inspect.Parameter.empty),
        "cleanup_stale_locks": {},
    },
    # As for `n`, which came later: by its name only.
    "gpu_lock": {"lock_gpu": dict(uid=None)},
    "safe_gpu": {
        "GPUOwner": dict(nb_gpus=1, placeholder_fn=None, logger=None, debug_sleep=0.0),
        "claim_gpus": dict(nb_gpus=1, placeholder_fn=None, logger=None, debug_sleep=0.0),
        "release_gpus": {},
        "get_free_gpus": {},
        "PytorchPlaceholder": dict(logger=None),
        "TensorflowPlaceholder": dict(logger=None),
        "PyCudaPlaceholder": dict(logger=None),
        "pytorch_placeholder": dict(device_no=inspect.Parameter.empty),
        "tensorflow_placeholder": dict(device_no=inspect.Parameter.empty),
    },
}

# The parts of PyTorch that are needed, on the simulated driver. Each call of `used` tells the GPU that a plain "cuda" is.
TORCH = (
    CUDA
    + """
import types
class Device:
    current = 0
    def __init__(self, ordinal):
        self.ordinal = ordinal
    def __enter__(self):
        self.before, Device.current = Device.current, self.ordinal
    def __exit__(self, *_):
        Device.current = self.before
def count():
    number = ctypes.c_int()
    return number.value if cuda().cuInit(0) == 0 and library.cuDeviceGetCount(ctypes.byref(number)) == 0 else 0
torch = sys.modules["torch"] = types.ModuleType("torch")
torch.cuda = types.SimpleNamespace(is_available=lambda: count() > 0, device_count=count, device=Device, is_initialized=lambda: False)
torch.zeros = lambda count, device: use(int(device[5:]))
def used():
    return int(use(Device.current)[-1], 16)
"""
)


class Signatures(unittest.TestCase):
    def parameters(self, name):
        return [each for each in inspect.signature(getattr(gpu_owner, name)).parameters.values() if each.name != "self"]

    def test_are_those_of_the_originals(self):
        for calls in SIGNATURES.values():
            for name, theirs in calls.items():
                with self.subTest(name):
                    self.assertIn(name, gpu_owner.__all__)
                    ours = self.parameters(name)[: len(theirs)]
                    self.assertEqual([(each.name, each.default) for each in ours], list(theirs.items()))

    def test_are_those_of_what_is_installed(self):
        compared = []
        for module, calls in SIGNATURES.items():
            for path in (f"{module}.{module}", module):
                try:
                    original = importlib.import_module(path)
                except ImportError:
                    continue
                for name in calls:
                    if not hasattr(original, name):
                        continue  # another version, or another package of this name
                    theirs = inspect.signature(getattr(original, name)).parameters
                    ours = [each.name for each in self.parameters(name)]
                    self.assertEqual(ours[: len(theirs)] if module != "gpu_lock" else sorted(set(theirs) & set(ours)), list(theirs))
                    compared.append(f"{module}.{name}")
        if not compared:
            self.skipTest("none of the originals is installed (pip install safe-gpu)")

    def test_kinds_of_errors(self):
        for error, kinds in (
            (gpu_owner.WaitTimeoutError, (TimeoutError, RuntimeError)),
            (gpu_owner.UsageError, (ValueError, RuntimeError)),
        ):
            self.assertIsInstance(error("why", 75), kinds)
            self.assertEqual((str(error("why", 75)), error("why", 75).exit_code), ("why", 75))


class Scheduler(OnMachine):
    def test_errors_name_the_parameters_that_were_written(self):
        lines = self.run_script(
            """
            for call in (
                lambda: gpu_owner.GPUScheduler(num_gpus="x").__enter__(),
                lambda: gpu_owner.GPUScheduler(max_wait_time=[]).__enter__(),
                lambda: gpu_owner.GPUScheduler(specific_gpus=[9]).__enter__(),
                lambda: gpu_owner.GPUScheduler(power_threshold_w="x").__enter__(),
                lambda: gpu_owner.GPUScheduler(timeout="x").__enter__(),
                lambda: gpu_owner.GPUScheduler(max_power="x").__enter__(),
                lambda: gpu_owner.lock_gpu(n="x"),
                lambda: gpu_owner.lock_gpu(uid=9),
                lambda: gpu_owner.GPUOwner(nb_gpus=None),
            ):
                try: call()
                except ValueError as error: print(str(error).split(":")[0])
            """
        )
        called = ["num_gpus", "max_wait_time", "specific_gpus", "power_threshold_w", "timeout", "max_power", "n", "uid", "nb_gpus"]
        self.assertEqual(lines, called)

    def test_programs_as_written(self):
        script = self.start(
            TORCH
            + textwrap.dedent(
                """
                from gpu_owner import GPUScheduler, find_free_gpus, get_gpu_info
                for gpu in get_gpu_info():
                    print(f"GPU {gpu['gpu_id']}: {gpu['memory_free']}MB free / {gpu['memory_total']}MB total, {gpu['power_draw']}W, {gpu['utilization']}%")
                print([gpu["gpu_id"] for gpu in find_free_gpus(memory_free_threshold_gb=20, power_threshold_w=80)])
                scheduler = GPUScheduler(num_gpus=2, specific_gpus=[1, 2, 3])
                for _ in range(2):
                    with scheduler as gpu_ids:
                        print(gpu_ids, scheduler.gpu_ids == gpu_ids, f"cuda:{gpu_ids[0]}", gpu_owner.is_gpu_locked(1), gpu_owner.is_gpu_locked(0))
                        input()
                    print(scheduler.gpu_ids, gpu_owner.is_gpu_locked(1))
                """
            )
        )
        for index in range(4):
            self.assertEqual(script.line(), f"GPU {index}: 81408MB free / 81920MB total, 60.0W, 0%")
        self.assertEqual(script.line(), "[0, 1, 2, 3]")
        for _ in range(2):
            self.assertEqual(script.line(), "[1, 2] True cuda:1 True False")
            self.assertEqual(self.held(), [1, 2])
            script.go()
            self.assertEqual(script.line(), "[] False")
        self.assertEqual(script.end(), (0, "", ""))

    def test_the_built_in_timeout_error(self):
        with self.occupied("--gpus=4"):
            lines = self.run_script(
                """
                sys.stderr = None
                for limit in (0, 0.2):
                    try:
                        with gpu_owner.GPUScheduler(max_wait_time=limit):
                            print("runs")
                    except TimeoutError as error:
                        print(error.code)
                try:
                    with gpu_owner.GPUScheduler(debug_mode=True):  # doesn't wait
                        print("runs")
                except RuntimeError as error:
                    print(error.code)
                """
            )
        self.assertEqual(lines, ["ERR_TIMEOUT", "ERR_TIMEOUT", "ERR_GPU_UNAVAILABLE"])

    def test_threads_that_enter_it_have_gpus_of_their_own(self):
        lines = self.run_script(
            """
            import threading
            scheduler = gpu_owner.GPUScheduler()
            inside, left = threading.Barrier(2), threading.Event()
            def leave_first():
                with scheduler:
                    inside.wait()
                left.set()
            def stay():
                with scheduler:
                    inside.wait()
                    left.wait()
                    print([gpu.index for gpu in gpu_owner.status() if gpu.state == "leased"])
            first = threading.Thread(target=leave_first)
            first.start()
            while len(scheduler.gpu_ids) == 0:
                time.sleep(0.02)
            second = threading.Thread(target=stay)
            second.start()
            for thread in (first, second):
                thread.join()
            print(scheduler.gpu_ids, [gpu.index for gpu in gpu_owner.status() if gpu.state == "leased"])
            """
        )
        self.assertEqual(lines, ["[1]", "[] []"])

    def test_after_torch_cuda_is_available(self):
        """CUDA shows all GPUs for the life of the process: the claim is one of these, and it numbers them."""
        with self.occupied("--gpus=2"):
            script = self.start(
                TORCH
                + textwrap.dedent(
                    """
                    from gpu_owner import GPUScheduler
                    assert torch.cuda.is_available()
                    for specific in (None, [3]):
                        with GPUScheduler(specific_gpus=specific) as gpu_ids:
                            with GPUScheduler(specific_gpus=[2] if specific else None) as more:
                                print(gpu_ids, more, used(), [int(use(gpu)[-1], 16) for gpu in gpu_ids + more], torch.cuda.device_count())
                                print(os.environ.get("CUDA_VISIBLE_DEVICES"))
                                input()
                            print(used())
                    try:
                        gpu_owner.claim()
                    except gpu_owner.CUDAInitializedError as error:
                        print(error.code)
                    """
                )
            )
            for first, second in ((2, 3), (3, 2)):
                self.assertEqual(script.line(), f"[{first}] [{second}] {second} [{first}, {second}] 4")
                self.assertEqual(script.line(), "None")
                self.assertEqual(self.held(), [0, 1, 2, 3])
                script.go()
                self.assertEqual(script.line(), str(first))
            self.assertEqual(script.line(), "ERR_CUDA_INITIALIZED")
            self.assertEqual(script.end(), (0, "", ""))


class Lock(OnMachine):
    def test_each_entry_locks_and_each_exit_releases(self):
        script = self.start(
            """
            from gpu_owner import lock_gpu
            lock = lock_gpu(uid=2)
            for _ in range(3):
                with lock as same:
                    print(lock.uid, same is lock, os.environ["CUDA_VISIBLE_DEVICES"], os.environ["CUDA_DEVICE_ORDER"], lock.held)
                    input()
                print(os.environ.get("CUDA_VISIBLE_DEVICES"), lock.held)
                input()
            try:
                with lock:
                    print("runs")
            except RuntimeError as error:
                print("leased by" in str(error))
            """
        )
        for _ in range(3):
            self.assertEqual(script.line(), "2 True 2 PCI_BUS_ID True")
            self.assertEqual(self.held(), [2])
            script.go()
            self.assertEqual(script.line(), "None False")
            self.assertEqual(self.held(), [])
            if _ < 2:
                script.go()
        with self.occupied("--devices=2"):
            script.go()
            self.assertEqual(script.end(), (0, "True\n", ""))

    def test_after_torch_cuda_is_available(self):
        lines = self.run_script(
            TORCH
            + textwrap.dedent(
                """
                print(torch.cuda.is_available())
                lock = gpu_owner.lock_gpu(uid=2)
                for _ in range(2):
                    with lock:
                        print(lock.uid, used(), same(lock[0]), int(lock[0]))
                """
            )
        )
        self.assertEqual(lines, ["True", "2 2 True 2", "2 2 True 2"])


# `here` and `below` tell the GPU, as nvidia-smi numbers it, on which this process computes, and a child or a launcher's children.
WITNESS = (
    TORCH
    + """
import subprocess
class Machine(dict):
    def __missing__(self, uuid):  # the UUIDs of a machine without a name end with the number
        return int(uuid[-1], 16)
named = not os.environ["GPU_OWNER_SIMULATE"].isdigit()
machine = Machine((gpu.uuid[4:].replace("-", ""), gpu.index) for gpu in gpu_owner.status()) if named else Machine()
def here(device=None):
    return machine[use(Device.current if device is None else int(str(device).replace("cuda:", "")))]
CHILD = '''
import ctypes, os
library, uuid, context = ctypes.CDLL(os.environ["SIMULATED_CUDA"]), (ctypes.c_ubyte * 16)(), ctypes.c_void_p()
rank = int(os.environ.get("LOCAL_RANK", 0))
assert library.cuInit(0) == 0 and library.cuDevicePrimaryCtxRetain(ctypes.byref(context), rank) == 0
library.cuDeviceGetUuid_v2(uuid, rank)
print(bytes(uuid).hex())
'''
def below(devices=None, ranks=1):
    env = dict(os.environ) if devices is None else {**os.environ, "CUDA_VISIBLE_DEVICES": devices}
    def output(rank):
        # In a job, gpu-owner's sitecustomize translates what a program passes on.
        site = [] if "GPU_OWNER_JOB" in os.environ else ["-S"]
        return subprocess.check_output([sys.executable, *site, "-c", CHILD], env={**env, "LOCAL_RANK": str(rank)}).decode().strip()
    return [machine[output(rank)] for rank in range(ranks)]
"""
)


class Idioms(OnMachine):
    """Programs for the originals compute on their own GPUs, in the process and in its children."""

    def witnessed(self, source, env=None):
        return self.run_script(WITNESS + textwrap.dedent(source), env)

    def test_numbers_of_the_scheduler_mean_the_same_in_the_process_and_below(self):
        with self.occupied("--devices=0"):
            lines = self.witnessed(
                """
                with gpu_owner.GPUScheduler(num_gpus=2, specific_gpus=[1, 2, 3]) as gpu_ids:
                    numbers = ",".join(map(str, gpu_ids))
                    print(below(numbers), below(numbers, ranks=2), below(f"{gpu_ids[1]}"), {type(gpu) for gpu in gpu_ids})
                    print([here(f"cuda:{gpu}") for gpu in gpu_ids], here("cuda:" + str(gpu_ids[1])), here(), torch.cuda.device_count())
                for one in (2, 3):  # CUDA runs: any of the machine's, at once
                    with gpu_owner.GPUScheduler(specific_gpus=[one], max_wait_time=0) as gpu_ids:
                        print(here(gpu_ids[0]), here(), below(str(gpu_ids[0])))
                """
            )
        self.assertEqual(lines, ["[1] [1, 2] [2] {<class 'int'>}", "[1, 2] 2 1 4", "2 2 [2]", "3 3 [3]"])

    def test_a_program_that_sets_the_variable_itself(self):
        """The numbers that it writes don't limit its next claim."""
        with self.occupied("--devices=0"):
            lines = self.witnessed(
                """
                for one in (1, 2):
                    with gpu_owner.GPUScheduler(specific_gpus=[one, 3], max_wait_time=0) as gpu_ids:
                        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpu_ids))
                        print(below(), here())
                    print(os.environ["CUDA_VISIBLE_DEVICES"], [gpu["gpu_id"] for gpu in gpu_owner.find_free_gpus()])
                """
            )
        self.assertEqual(lines, ["[1] 1", "1 [2, 3]", "[2] 2", "2 [3]"])

    SCHEDULED = """
        with gpu_owner.GPUScheduler(num_gpus=2, power_threshold_w=None) as gpu_ids:
            print(gpu_ids, below(",".join(map(str, gpu_ids)), ranks=2), below(), end=" ")
            print([here(f"cuda:{gpu}") for gpu in gpu_ids], here())
        """

    def test_a_child_that_claims_what_its_parent_gave_it_is_told_so(self):
        script = self.start(
            """
            import subprocess
            with gpu_owner.GPUScheduler(specific_gpus=[2]) as gpu_ids:
                child = [sys.executable, "-c", "import gpu_owner; gpu_owner.GPUScheduler().__enter__()"]
                raise SystemExit(subprocess.run(child, env={**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu_ids[0])}).returncode)
            """
        )
        code, _, err = script.end()
        self.assertEqual(code, 1)
        self.assertIn(f"process {script.pid}, from which this one was started, claimed GPUs before (2)", err)

    def test_the_number_of_gpu_lock(self):
        lines = self.witnessed(
            """
            with gpu_owner.lock_gpu(uid=3) as lock:
                print(below(), below(str(lock.uid)), here("cuda:0"))
            try:
                gpu_owner.lock_gpu(uid=1)
            except RuntimeError as error:
                print("CUDA runs in this process" in str(error), "only GPU 3, claimed at <string>:" in str(error))
            """
        )
        self.assertEqual(lines, ["[3] [3] 3", "True True"])

    def test_an_owner_of_safe_gpu_lasts_until_the_process_ends(self):
        for program in (
            "def get_device():\n    owner = safe_gpu.GPUOwner()\n    return 'cuda:0'\ndevice = get_device()",
            "safe_gpu.claim_gpus(1)\ndevice = 'cuda:0'",
        ):
            with self.occupied("--devices=0"):
                script = self.start(
                    f"{WITNESS}\nimport gc, gpu_owner as safe_gpu\n{program}\ngc.collect()\nprint(below(), here(device))\ninput()"
                )
                self.assertEqual(script.line(), "[1] 1")
                self.assertEqual(self.held(), [0, 1])
                script.go()
                self.assertEqual(script.end(), (0, "", ""))


class Mixed(OnMachine):
    """CUDA's order, the fastest first, is not nvidia-smi's."""

    machine = "mixed"

    def test_numbers_of_free_gpus_are_cudas(self):
        lines = self.run_script(
            WITNESS.replace("machine = ", "free = gpu_owner.find_free_gpus(20, 80, 1)\nmachine = ")
            + "print([(gpu['gpu_id'], below(str(gpu['gpu_id'])), here(f\"cuda:{gpu['gpu_id']}\")) for gpu in free])"
        )
        self.assertEqual(lines, ["[(1, [1], 1), (2, [2], 2)]"])

    def test_numbers_of_the_scheduler(self):
        for late, told in ((False, "[1] [1] 1"), (True, "[0] [1] 1")):
            lines = self.run_script(
                WITNESS
                + f"assert not {late} or torch.cuda.is_available()\n"
                + textwrap.dedent(
                    """
                    with gpu_owner.GPUScheduler(specific_gpus=[1]) as gpu_ids:
                        print(gpu_ids, below(",".join(map(str, gpu_ids))), here(gpu_ids[0]))
                    """
                )
            )
            self.assertEqual(lines, [told])


# Prints what each package does and logs; `safe_gpu` is either.
ACQUISITOR = """
import logging
class Lines(logging.Handler):
    def emit(self, record):
        print(record.levelname, record.getMessage())
logger = logging.getLogger("GPUOwner1")
logger.setLevel(logging.INFO)
logger.addHandler(Lines())
placeholder = getattr(safe_gpu, "PytorchPlaceholder", None)
placeholder = placeholder(logger) if placeholder else safe_gpu.pytorch_placeholder
owner = safe_gpu.GPUOwner(nb_gpus=2, placeholder_fn=placeholder, logger=logger, debug_sleep=0.01)
print(owner.devices_taken, owner.placeholders, os.environ["CUDA_VISIBLE_DEVICES"], owner.logger is logger, owner.debug_sleep, owner.placeholder_fn is placeholder)
safe_gpu.claim_gpus(1, placeholder, logger)
print(safe_gpu.gpu_owner.devices_taken, safe_gpu.gpu_owner.placeholders)
try:
    safe_gpu.GPUOwner(2, placeholder)
except RuntimeError:
    print("too few")
"""
ACQUIRED = [
    "INFO acquiring lock",
    "INFO lock acquired",
    "INFO Set CUDA_VISIBLE_DEVICES=0,1",
    "INFO lock released",
    "[0, 1] ['made on cuda:0', 'made on cuda:1'] 0,1 True 0.01 True",
    "INFO acquiring lock",
    "INFO lock acquired",
]
STUB = "import sys, types\nsys.modules['torch'] = types.SimpleNamespace(zeros=lambda count, device: f'made on {device}')\n"
NVIDIA_SMI = f"""#!{sys.executable} -S
import json, subprocess, sys
gpus = json.loads(subprocess.check_output([{str(COMMAND)!r}, "status", "--json"]).decode())
if "-q" in sys.argv:
    print("Attached GPUs : %d" % len(gpus), "    Display Mode : Disabled", sep="\\n")
elif any("compute-apps" in word for word in sys.argv):
    print(*[f"{{each['pid']}}, {{gpu['pciBusId']}}" for gpu in gpus for each in gpu["processes"]], sep="\\n")
else:
    print(*[f"{{gpu['index']}}, {{gpu['pciBusId']}}" for gpu in gpus], sep="\\n")
"""


class SafeGPU(OnMachine):
    machine = "3"

    def test_the_acquisitor(self):
        lines = self.run_script(STUB + "import gpu_owner as safe_gpu\n" + ACQUISITOR)
        self.assertEqual(lines[: len(ACQUIRED)], ACQUIRED)
        self.assertEqual(lines[-2:], ["[2] ['made on cuda:2']", "too few"])

    def test_the_acquisitor_of_the_original(self):
        """That what is asked of this module is what the original does."""
        lines = self.run_script(STUB + "from safe_gpu import safe_gpu\n" + ACQUISITOR, self.original())
        # Only placeholders keep a GPU for safe-gpu, and these here aren't real: the program takes the same GPU again.
        self.assertEqual(lines[: len(ACQUIRED)], ACQUIRED)

    def original(self):
        """Has scripts find the original, and an nvidia-smi for it. Skips the test where it isn't installed."""
        try:
            directory = pathlib.Path(str(importlib.import_module("safe_gpu.safe_gpu").__file__)).parents[1]
        except ImportError:
            self.skipTest("safe-gpu isn't installed (pip install safe-gpu)")
        pathlib.Path(self.directory, "nvidia-smi").write_text(NVIDIA_SMI)
        os.chmod(os.path.join(self.directory, "nvidia-smi"), 0o755)
        return {"PATH": f"{self.directory}:{self.env['PATH']}", "PYTHONPATH": f"{MODULE.parent}:{directory}"}

    def test_releasing(self):
        script = self.start(
            STUB
            + textwrap.dedent(
                """
                import logging
                messages = []
                logging.getLogger().addHandler(type("Lines", (logging.Handler,), {"emit": lambda self, record: messages.append(record.getMessage())})())
                logging.getLogger().setLevel(logging.INFO)
                gpu_owner.release_gpus()  # nothing was claimed
                for placeholder in (gpu_owner.PytorchPlaceholder(), gpu_owner.pytorch_placeholder, None):
                    gpu_owner.claim_gpus(2, placeholder) if placeholder else gpu_owner.claim_gpus(2)
                    print(gpu_owner.gpu_owner.devices_taken)
                    input()
                    del messages[:]
                    gpu_owner.release_gpus()
                    print(len([text for text in messages if text.startswith("Releasing placeholder on CUDA device: ")]))
                    input()
                """
            )
        )
        for released in ("2", "2", "0"):
            self.assertEqual(script.line(), "[0, 1]")
            self.assertEqual(self.held(), [0, 1])
            script.go()
            self.assertEqual(script.line(), released)
            self.assertEqual(self.held(), [])
            script.go()
        self.assertEqual(script.end(), (0, "", ""))


class Instances(OnMachine):
    """The originals know whole GPUs only, with one entry for each. Two of these four are divided."""

    machine = "a100x4-mig"

    def test_the_scheduler_gives_one(self):
        """The driver tells neither power nor utilization of an instance, and CUDA shows no more than one."""
        lines = self.run_script(
            WITNESS
            + textwrap.dedent(
                """
                with gpu_owner.GPUScheduler(memory_free_threshold_gb=1, specific_gpus=[1]) as gpu_ids:
                    print(gpu_ids, below(), below(",".join(map(str, gpu_ids))), here(f"cuda:{gpu_ids[0]}"), torch.cuda.device_count())
                """
            )
        )
        self.assertEqual(lines, ["[0] [1] [1] 1 1"])


class WSL(OnMachine):
    """Windows lends the GPU: the driver lists no processes, and doesn't tell utilization."""

    machine = "wsl"

    def test_programs_as_written(self):
        self.assertEqual([(gpu["processes"], gpu["utilizationPercent"]) for gpu in self.status()], [(None, None)])
        script = self.start(
            WITNESS
            + textwrap.dedent(
                """
                print([gpu["gpu_id"] for gpu in gpu_owner.find_free_gpus(10, 80, 1)], gpu_owner.get_free_gpus())
                with gpu_owner.GPUScheduler(memory_free_threshold_gb=10) as gpu_ids:
                    print(gpu_ids, below(str(gpu_ids[0])), here(f"cuda:{gpu_ids[0]}"))
                with gpu_owner.lock_gpu() as lock:
                    print(below(), here("cuda:0"))
                """
            )
        )
        for line in ("[0] ['0']", "[0] [0] 0", "[0] 0"):
            self.assertEqual(script.line(), line)
        self.assertEqual(script.end(), (0, "", ""))
        self.assertEqual(self.run_script(WITNESS + "owner = gpu_owner.GPUOwner()\nprint(below(), here('cuda:0'))"), ["[0] 0"])


class Windows(OnMachine):
    """As if it ran there: without what Python lacks on that system."""

    def test_claims_say_where_they_work_and_tasks_and_results_work(self):
        task = pathlib.Path(self.directory, "task.json")
        task.write_text(json.dumps({"id": "t_0", "parameters": {"lr": 0.1}}))
        source = """
            import os, select, signal, sys
            del signal.SIGKILL, os.killpg, os.register_at_fork, os.RTLD_NOLOAD, os.RTLD_LAZY, os.O_CLOEXEC, select.poll, os.getuid
            sys.modules["fcntl"], os.name = None, "nt"
            import gpu_owner
            calls = (gpu_owner.claim, gpu_owner.GPUOwner, gpu_owner.lock_gpu, gpu_owner.GPUScheduler().__enter__)
            for call in (*calls, gpu_owner.status, gpu_owner.find_free_gpus, lambda: gpu_owner.submit(["true"]), lambda: gpu_owner.Job(1)):
                try:
                    call()
                except gpu_owner.GPUOwnerError as error:
                    print(error.code, "WSL 2" in str(error))
            print(gpu_owner.task()["lr"])
            gpu_owner.result({"loss": 0.5})
            gpu_owner.result({"accuracy": 1})
            with open(os.environ["GPU_OWNER_RESULT"]) as file:
                print(file.read().strip())
            """
        files = {"GPU_OWNER_RESULT": os.path.join(self.directory, "result.json"), "GPU_OWNER_TASK": str(task)}
        code, out, err = self.start_words([sys.executable, "-W", "error", "-c", textwrap.dedent(source)], files).end()
        self.assertEqual((code, err), (0, ""))
        self.assertEqual(out.splitlines(), ["ERR_UNSUPPORTED_PLATFORM True"] * 8 + ["0.1", '{"loss": 0.5, "accuracy": 1}'])


FIXTURES = pathlib.Path(__file__).parent / "fixtures"
# By package: a program of its users, which prints how CUDA names its GPU, and its PID, and stays until its input ends.
PROGRAMS = {
    "safe_gpu": """
import os, sys
from safe_gpu import safe_gpu
owner = safe_gpu.GPUOwner(placeholder_fn=safe_gpu.PytorchPlaceholder())
print("cuda:0", os.getpid(), flush=True)
sys.stdin.read()
""",
    "gpu_lock": """
import os, sys
from gpu_lock import lock_gpu
import torch
with lock_gpu():
    print(torch.zeros(1).device, os.getpid(), flush=True)
    sys.stdin.read()
""",
    "gpu_scheduler": """
import os, sys
from gpu_scheduler import GPUScheduler
import torch
with GPUScheduler(memory_free_threshold_gb=4, max_wait_time=20) as gpu_ids:
    print(torch.zeros(1, device=f"cuda:{gpu_ids[0]}").device, os.getpid(), flush=True)
    sys.stdin.read()
""",
}


class InJobs(OnMachine):
    """`gpu-owner run -- python program_of_the_original.py`; the driver tells on which GPU the program is."""

    def setUp(self):
        super().setUp()
        self.env["PYTHONPATH"] = str(FIXTURES)

    def program(self, package, *words):
        if package == "safe_gpu" and importlib.util.find_spec(package) is None:
            self.skipTest("safe-gpu isn't installed (pip install safe-gpu)")
        path = pathlib.Path(self.directory, f"{package}.program.py")
        path.write_text(PROGRAMS[package])
        return self.start_words([str(COMMAND), "run", *words, "--", sys.executable, str(path)])

    def used(self, pid):
        """The GPUs on which the driver lists this program."""
        shown = json.loads(self.simulate("show", "--json").decode())
        return [at for at, gpu in enumerate(shown["gpus"]) for each in gpu["processes"] if each["pid"] == pid]

    def test_unchanged_programs_use_the_gpu_of_their_job(self):
        with self.occupied("--devices=0"):
            for package in PROGRAMS:
                with self.subTest(package):
                    script = self.program(package, "--devices=2")
                    try:
                        device, pid = script.line().split()
                        self.assertEqual((device, self.used(int(pid)), self.held()), ("cuda:0", [2], [0, 2]))
                    finally:
                        script.process.stdin.close()
                    code, out, err = script.end()
                    self.assertEqual((code, out), (0, ""), err)
                    self.assertRegex(
                        err, f"^gpu-owner: {package}[.a-z_]* claims from this job's GPUs, by gpu-owner's module in its place[.]\n$"
                    )

    def test_bans_of_gpu_scheduler_stay(self):
        program = """
import gpu_scheduler, gpu_scheduler.gpu_info as info, os
info.BANNED_GPUS, info.BANNED_GPU_NAMES = [1, 9], ["T400"]
print([gpu["gpu_id"] for gpu in gpu_scheduler.find_free_gpus()])
with gpu_scheduler.GPUScheduler() as gpu_ids:
    print(os.environ["CUDA_VISIBLE_DEVICES"][-1])
info.BANNED_GPUS = [1, 2]
try:
    gpu_scheduler.GPUScheduler().__enter__()
except ValueError as error:
    print("GPU 2: excluded by BANNED_GPUS" in str(error), "gpu-owner run --exclude 1,2" in str(error))
"""
        script = self.start_words([str(COMMAND), "run", "--gpus=2", "--devices=1,2", "--", sys.executable, "-c", program])
        code, out, err = script.end()
        self.assertEqual((code, out), (0, "[2]\n2\nTrue True\n"), err)

    def test_programs_side_by_side_share_the_gpus_of_their_job(self):
        words = [[sys.executable, "-c", PROGRAMS[name]] for name in ("gpu_lock", "gpu_scheduler")]
        starter = f"import subprocess; [each.wait() for each in [subprocess.Popen(one) for one in {words!r}]]"
        script = self.start_words([str(COMMAND), "run", "--gpus=2", "--devices=1,3", "--", sys.executable, "-c", starter])
        devices, pids = zip(*(script.line().split() for _ in words))
        self.assertEqual(devices, ("cuda:0", "cuda:0"))
        self.assertEqual((sorted(gpu for pid in pids for gpu in self.used(int(pid))), self.held()), ([1, 3], [1, 3]))
        self.assertEqual(script.end()[:2], (0, ""))

    def test_other_packages_and_a_sitecustomize_stay(self):
        files = {
            "gpu_scheduler.py": "class GPUScheduler:\n    def __init__(self, available_gpus): print(available_gpus)",
            "sitecustomize.py": "print('site')",
        }
        for name, text in files.items():
            pathlib.Path(self.directory, name).write_text(text)
        program = "import gpu_scheduler, inspect, sys; gpu_scheduler.GPUScheduler([3]); print('available_gpus' in inspect.getsource(gpu_scheduler), 'gpu_owner' in sys.modules)"
        words = [str(COMMAND), "run", "--", sys.executable, "-c", program]
        script = self.start_words(words, {"PYTHONPATH": self.directory})
        self.assertEqual(script.end(), (0, "site\n[3]\nTrue False\n", ""))


if __name__ == "__main__":
    unittest.main()
