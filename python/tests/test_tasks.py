"""Tests of gpu_owner.task() and gpu_owner.result(): programs with a task's two files, without the command gpu-owner."""

import enum
import json
import math
import os
import pathlib
import shutil
import subprocess
import tempfile
import textwrap
import unittest

from test_gpu_owner import PYTHON

ROOT = pathlib.Path(__file__).resolve().parents[2]
TASK = {
    "id": "t-" + "0" * 64,
    "name": "exp1_vary_width_0_42",
    "phase": "exp1_vary_width",
    "parameters": {"dataset": "mnist", "width_factor": 2, "lr": 0.1, "augment": True, "note": None},
    "seed": 42,
    "output_dir": "results_mnist",
    "start": 2,
    "worker": "gpu0",
}


class Scalar:
    """A scalar as NumPy, PyTorch, JAX and CuPy have them."""

    def __init__(self, value, ndim=0):
        self.value, self.ndim = value, ndim

    def item(self):
        if self.ndim:
            raise ValueError("only a scalar can be converted")
        return self.value

    def tolist(self):
        return self.value


class Colour(enum.IntEnum):
    RED = 1


class WithFiles(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="gpu-owner-tasks-")
        self.task = os.path.join(self.directory, "task.json")
        self.result = os.path.join(self.directory, "result.json")
        self.write(json.dumps(TASK))

    def tearDown(self):
        shutil.rmtree(self.directory, ignore_errors=True)

    def write(self, text):
        pathlib.Path(self.task).write_text(text)

    def start(self, source, inside=True, env=None):
        unwanted = ("GPU_OWNER_", "PYTHON")
        # PATH has no gpu-owner, which nothing of this needs.
        clean = {name: value for name, value in os.environ.items() if not name.startswith(unwanted) and name != "PATH"}
        clean.update(PYTHONPATH=str(ROOT / "python"), PATH="/nonexistent", **(env or {}))
        if inside:
            clean.update(GPU_OWNER_TASK=self.task, GPU_OWNER_RESULT=self.result)
        pipe = subprocess.PIPE
        words = [*PYTHON, "-W", "error", "-c", "import gpu_owner, os\n" + textwrap.dedent(source)]
        return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, env=clean, cwd=self.directory, universal_newlines=True)

    def run_program(self, source, inside=True):
        process = self.start(source, inside)
        out, err = process.communicate(timeout=60)
        self.assertEqual((process.returncode, err), (0, ""))
        return out

    def complaint(self, source, inside=True):
        """Returns the message of the error that it raises."""
        process = self.start(source, inside)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, err)
        return err.splitlines()[-1]

    def written(self):
        return json.loads(pathlib.Path(self.result).read_text())


class Tasks(WithFiles):
    def test_what_it_has(self):
        out = self.run_program(
            """
            task = gpu_owner.task()
            print(task.id[:4], task.name, task.phase, task.seed, task.output_dir, task.start, task.worker)
            print(task["lr"], task.get("momentum", 0.9), "lr" in task, "momentum" in task, task["note"])
            print(list(task), len(task), dict(task) == task.parameters)
            """
        )
        self.assertEqual(
            out.splitlines(),
            [
                "t-00 exp1_vary_width_0_42 exp1_vary_width 42 results_mnist 2 gpu0",
                "0.1 0.9 True False None",
                "['dataset', 'width_factor', 'lr', 'augment', 'note'] 5 True",
            ],
        )

    def test_is_the_dict_that_the_runner_had(self):
        out = self.run_program(
            """
            import copy, json, pickle
            config = gpu_owner.task()
            config["device"] = "cuda:0"
            config.setdefault("epochs", 5)
            del config["note"]
            print(config["device"], config.get("epochs"), config.parameters["device"], "note" in config, config.seed)
            print(isinstance(config, dict), json.loads(json.dumps(config)) == config == copy.deepcopy(config) == pickle.loads(pickle.dumps(config)))
            print(pickle.loads(pickle.dumps(config)).name, {**config}["lr"], config)
            """
        )
        self.assertEqual(
            out.splitlines(),
            [
                "cuda:0 5 cuda:0 False 42",
                "True True",
                "exp1_vary_width_0_42 0.1 {'dataset': 'mnist', 'width_factor': 2, 'lr': 0.1, 'augment': True, 'device': 'cuda:0', 'epochs': 5}",
            ],
        )

    def test_numbers_as_they_were_written(self):
        self.write('{"name": "a", "parameters": {"a": 1.0, "b": 1e-3, "c": NaN, "d": 123456789012345678901234567890, "e": "ü"}}')
        out = self.run_program("print(ascii(gpu_owner.task().parameters))")
        self.assertEqual(out, "{'a': 1.0, 'b': 0.001, 'c': nan, 'd': 123456789012345678901234567890, 'e': '\\xfc'}\n")

    def test_a_default_does_not_count_within_a_task(self):
        out = self.run_program('task = gpu_owner.task(default={"lr": 7, "momentum": 1})\nprint(task["lr"], "momentum" in task)')
        self.assertEqual(out, "0.1 False\n")

    def test_by_hand(self):
        out = self.run_program(
            """
            task = gpu_owner.task(default={"lr": 7, "seed": 3, "output_dir": "out"})
            print(dict(task), task.seed, task.output_dir, task.id, task.phase, task.worker, task.start, task.name)
            print(gpu_owner.task(default={}).output_dir)
            """,
            inside=False,
        )
        self.assertEqual(out, "{'lr': 7, 'seed': 3} 3 out None None None 1 by hand\n.\n")

    def test_errors(self):
        self.assertRegex(self.complaint("gpu_owner.task()", inside=False), r"NoTaskError: .*GPU_OWNER_TASK isn't set.*default=")
        self.assertRegex(self.complaint("gpu_owner.task()['momentum']"), r"KeyError: .*momentum: .*no such parameter.* dataset, width")
        for key, attribute in (("output_dir", "output_dir"), ("phase_name", "phase"), ("seed", "seed")):
            self.assertIn(f"{key}: is not a parameter; write task.{attribute}", self.complaint(f"gpu_owner.task()['{key}']"))
        self.write("{")
        self.assertRegex(self.complaint("gpu_owner.task()"), r"NoTaskError: .*task.json.* isn't a task: ")
        self.write("[]")
        self.assertRegex(self.complaint("gpu_owner.task()"), r"NoTaskError: .* it has no parameters")
        os.unlink(self.task)
        self.assertRegex(self.complaint("gpu_owner.task(default={})"), r"NoTaskError: .*task.json.*: that attempt has ended")
        self.assertEqual(
            self.run_program("print(issubclass(gpu_owner.NoTaskError, RuntimeError), gpu_owner.NoTaskError('').code)"), "True ERR_NO_TASK\n"
        )


class Reports(WithFiles):
    def setUp(self):
        super().setUp()
        self.progress = os.path.join(self.directory, "progress.jsonl")

    def report(self, source):
        return f"os.environ['GPU_OWNER_PROGRESS'] = {self.progress!r}\n{source}"

    def test_lines_of_values(self):
        self.run_program(self.report("gpu_owner.report(1, loss=0.5); gpu_owner.report(step=2, loss=float('nan'), name='a')"))
        written = pathlib.Path(self.progress).read_text()
        self.assertEqual(written, '{"step": 1, "loss": 0.5}\n{"step": 2, "loss": NaN, "name": "a"}\n')

    def test_outside_of_a_task(self):
        self.assertEqual(self.run_program("gpu_owner.report(0, loss=1)"), "")

    def test_errors(self):
        for step in ("-1", "0.5", "'1'"):
            self.assertIn("a whole number from 0 on", self.complaint(self.report(f"gpu_owner.report({step}, loss=1)")))
        self.assertIn("loss: a value of type", self.complaint(self.report("gpu_owner.report(1, loss=object())")))
        self.assertFalse(os.path.exists(self.progress))
        self.progress = "/nowhere/progress"
        self.assertIn("(GPU_OWNER_PROGRESS)", self.complaint(self.report("gpu_owner.report(1, loss=1)")))


class Results(WithFiles):
    def test_what_can_be_written(self):
        self.run_program(
            """
            import pathlib, sys
            sys.path.insert(0, %r)
            from test_tasks import Colour, Scalar
            gpu_owner.result({
                "accuracy": 0.9, "epochs": 3, "ok": True, "note": "ü\\n", "nothing": None, "loss": float("nan"), "up": float("inf"),
                "scalar": Scalar(0.5), "array": Scalar([[1, 2], [3, 4]], 2), "path": pathlib.Path("a/b"), "colour": Colour.RED,
                "tuple": (1, Scalar(2)), "per_class": {"cat": Scalar(1), 3: [{}]}, "big": 10 ** 30,
            })
            """
            % str(ROOT / "python" / "tests")
        )
        result = self.written()
        self.assertTrue(math.isnan(result.pop("loss")))
        self.assertEqual(
            result,
            {
                **{"accuracy": 0.9, "epochs": 3, "ok": True, "note": "ü\n", "nothing": None, "up": math.inf, "scalar": 0.5},
                **{"array": [[1, 2], [3, 4]], "path": "a/b", "colour": 1, "tuple": [1, 2], "per_class": {"cat": 1, "3": [{}]}},
                "big": 10**30,
            },
        )
        self.assertEqual(os.listdir(self.directory).count("result.json"), 1)
        self.assertEqual(len(os.listdir(self.directory)), 2)  # and no temporary files

    def test_numpy(self):
        try:
            import numpy  # noqa: F401
        except ImportError:
            self.skipTest("needs NumPy")
        self.run_program(
            """
            import site
            site.main()  # where NumPy is installed
            import numpy as np
            gpu_owner.result({"a": np.float32(0.5), "b": np.int64(3), "c": np.bool_(True), "d": np.arange(2), "e": np.array(1.5),
                              "f": np.float64("nan"), "g": {np.int64(1): np.array([0.5])}})
            """
        )
        result = self.written()
        self.assertTrue(math.isnan(result.pop("f")))
        self.assertEqual(result, {"a": 0.5, "b": 3, "c": True, "d": [0, 1], "e": 1.5, "g": {"1": [0.5]}})

    def test_called_several_times(self):
        self.run_program('gpu_owner.result({"a": 1, "b": float("inf")})\ngpu_owner.result({"a": 2, "c": 3})')
        self.assertEqual(self.written(), {"a": 2, "b": math.inf, "c": 3})
        self.run_program('gpu_owner.result({"c": 4})')  # another process of the same task
        self.assertEqual(self.written(), {"a": 2, "b": math.inf, "c": 4})

    def test_ranks_that_write_at_the_same_time(self):
        source = 'input()\nfor i in range(25): gpu_owner.result({f"%d-{i}": i})'
        processes = [self.start(source % rank) for rank in range(4)]
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        for process in processes:
            self.assertEqual(process.communicate(timeout=60), ("", ""))
        self.assertEqual(len(self.written()), 100)

    def test_whole_or_not_at_all(self):
        # Killed at any moment: what is there can be read.
        source = 'print("go", flush=True)\nfor i in range(10 ** 6): gpu_owner.result({"a": "x" * 50000, "i": i})'
        for _ in range(5):
            process = self.start(source)
            process.stdout.readline()
            while not os.path.exists(self.result):
                self.assertIsNone(process.poll())
            process.kill()
            process.communicate()
            self.assertEqual(len(self.written()["a"]), 50000)

    def test_by_hand(self):
        out = self.run_program('gpu_owner.result({"a": 1, "b": float("nan"), "c": {"d": [None]}})', inside=False)
        self.assertEqual(out, '{"a": 1, "b": NaN, "c": {"d": [null]}}\n')

    def test_errors_name_the_key(self):
        cases = (
            ("{'good': 1, 'bad': object()}", r"UsageError: bad: a value of type object can't be written; use numbers"),
            ("{'a': {'b': [1, {2}]}}", r"UsageError: a\.b\[1\]: a value of type set can't be written"),
            ("{'a': {(1, 2): 3}}", r"UsageError: a: the key \(1, 2\) of this dict"),
            ("{'a': b''}", r"UsageError: a: a value of type bytes can't be written"),
            ("{'a': 1j}", r"UsageError: a: a value of type complex"),
            ("{1: 2}", r"UsageError: .*names of columns.* 1 can't"),
            ("{'': 2}", r"UsageError: .*names of columns.* '' can't"),
            ("[1]", r"UsageError: a result is a dict .* not a value of type list"),
            ("{'a': nested}", r"UsageError: a\[0\].*nested more than 64"),
        )
        source = "\nnested = []\nnested.append(nested)\n"
        for values, _ in cases:
            source += f"try: gpu_owner.result({values})\nexcept ValueError as error: print(f'{{type(error).__name__}}: {{error}}')\n"
        lines = self.run_program(source).splitlines()
        self.assertEqual(len(lines), len(cases))
        for line, (_, pattern) in zip(lines, cases):
            self.assertRegex(line, pattern)
        self.assertFalse(os.path.exists(self.result))
        self.assertEqual(
            self.run_program("try: gpu_owner.result({'a': b''})\nexcept ValueError as error: print(error.code)"), "ERR_INVALID_ARGUMENT\n"
        )

    def test_at_most_1_mib(self):
        self.run_program('gpu_owner.result({"a": "x" * (1024 ** 2 - 10)})')
        self.assertEqual(os.path.getsize(self.result), 1024**2)
        self.assertRegex(self.complaint('gpu_owner.result({"b": 1})'), r"UsageError: the result has 1,048,584 bytes, .*'a'.*output_dir")
        self.assertEqual(list(self.written()), ["a"])  # as it was

    def test_a_file_that_cannot_be_written_or_read(self):
        pathlib.Path(self.result).write_text("accuracy: 0.9")
        self.assertRegex(self.complaint("gpu_owner.result({})"), r"GPUOwnerError: .*result.json.* has something that isn't JSON")
        pathlib.Path(self.result).write_text("[1]")
        self.assertRegex(self.complaint("gpu_owner.result({})"), r"GPUOwnerError: .*result.json.* list where an object belongs")
        pathlib.Path(self.result).write_text("")  # made for us, with nothing in it yet
        self.run_program("gpu_owner.result({'a': 1})")
        self.assertEqual(self.written(), {"a": 1})
        self.result = os.path.join(self.directory, "gone", "result.json")
        self.assertRegex(self.complaint("gpu_owner.result({})"), r"GPUOwnerError: .*gone/result.json.*: No such file or directory")
        if os.path.exists("/dev/full"):
            self.result = os.path.join(self.directory, "full.json")
            full = 'import builtins; real = open\nbuiltins.open = lambda path, mode="r", **more: real("/dev/full" if "w" in mode else path, mode, **more)\n'
            self.assertRegex(self.complaint(full + "gpu_owner.result({'a': 1})"), r"GPUOwnerError: .*full.json.*: No space left on device")


if __name__ == "__main__":
    unittest.main()
