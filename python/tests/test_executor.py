"""Executor: pools of calls that have GPUs of their own, as whole processes on simulated machines.

The witness is a file per GPU, which each call locks, and a log to which each call writes that it begins and ends.
"""

import ast
import collections
import importlib.util
import itertools
import os
import pathlib
import random
import re
import signal
import sys
import textwrap
import unittest

from test_gpu_owner import COMMAND, IS_SOAK, MODULE, PYTHON, OnMachine, kill, until

SITE = [sys.executable]  # with the packages of this Python
SOURCE = """
import concurrent.futures, contextlib, fcntl, os, signal, sys, threading, time
from gpu_owner import Executor, UsageError, WaitTimeoutError, WorkerDiedError

LOG = os.environ["CALLS"]

@contextlib.contextmanager
def witness(name):
    # Two calls on one GPU at a time, or a GPU that isn't the only one, are an error.
    gpu = os.environ["CUDA_VISIBLE_DEVICES"]
    with open(f"{LOG}.{gpu}", "a") as file, open(LOG, "a", 1) as log:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        log.write(f"begin {name} {os.getpid()}\\n")
        yield gpu
        log.write(f"end {name} {os.getpid()}\\n")

def call(name, seconds=0.0):
    with witness(name) as gpu:
        time.sleep(seconds)
    return name, gpu[-1]

"""


class Executors(OnMachine):
    machine = "2"

    def setUp(self):
        super().setUp()
        self.calls = os.path.join(self.directory, "calls")
        self.env.update(CALLS=self.calls, GPU_OWNER_COMMAND=str(COMMAND))

    def pool(self, main, before="", env=None, python=PYTHON, **options):
        path = os.path.join(self.directory, "program.py")
        program = SOURCE + textwrap.dedent(before) + "\nif __name__ == '__main__':\n" + textwrap.indent(textwrap.dedent(main), "    ")
        pathlib.Path(path).write_text(program)
        return self.start_words([*python, path], env, **options)

    def output_of(self, main, before="", env=None, **options):
        code, out, err = self.pool(main, before, env, **options).end()
        self.assertEqual(code, 0, err)
        self.assertEqual(self.held(), [])
        return out.splitlines()

    def logged(self, event):
        """How often each call has begun, or ended."""
        if not os.path.exists(self.calls):
            return collections.Counter()
        lines = [line.split() for line in pathlib.Path(self.calls).read_text().splitlines()]
        return collections.Counter(name for kind, name, _ in lines if kind == event)

    def running(self, names=""):
        """The workers of calls that have begun and not ended."""
        lines = [line.split() for line in pathlib.Path(self.calls).read_text().splitlines()] if os.path.exists(self.calls) else []
        ended = {(name, pid) for kind, name, pid in lines if kind == "end"}
        begun = [(name, pid) for kind, name, pid in lines if kind == "begin" and name.startswith(names)]
        return [int(pid) for name, pid in begun if (name, pid) not in ended]

    def soon(self, event, count):
        until(lambda: sum(self.logged(event).values()) >= count, f"{count} calls {event}")

    def test_calls_have_gpus_of_their_own_and_results_come_in_order(self):
        lines = self.output_of(
            """
            with Executor(max_workers=3) as pool:
                results = list(pool.map(call, range(12), [0.05] * 12))
                print([name for name, _ in results], {gpu for _, gpu in results} == {"0", "1"})
                print([name for name, _ in pool.map(call, range(7), chunksize=3)])
                futures = [pool.submit(call, f"s{n}") for n in range(3)]
                print(sorted(f.result()[0] for f in concurrent.futures.as_completed(futures)))
                try:
                    list(pool.map(time.sleep, [1, 1, 1], timeout=0.1))
                except concurrent.futures.TimeoutError:
                    print("too late")
                held = threading.Event()
                first = [pool.submit(time.sleep, 0.5) for _ in range(3)]
                last = pool.submit(call, "cancelled")
                print(last.cancel(), last.cancelled())
            try:
                pool.submit(call, 1)
            except RuntimeError as error:
                print(error)
            """
        )
        self.assertEqual(
            lines,
            [
                "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11] True",
                "[0, 1, 2, 3, 4, 5, 6]",
                "['s0', 's1', 's2']",
                "too late",
                "True True",
                "cannot submit calls after shutdown",
            ],
        )
        self.assertNotIn("cancelled", self.logged("begin"))

    def test_errors_come_with_the_traceback_of_the_worker(self):
        lines = self.output_of(
            """
            with Executor(max_workers=1, initializer=prepare, initargs=(3,)) as pool:
                for function in (lost, odd, sys.exit, hidden):
                    try:
                        print(pool.submit(function).result())
                    except BaseException as error:
                        print(type(error).__name__, error, "in " + function.__name__ in str(error.__cause__))
                print(pool.submit(prepared).result())
            """,
            """
            class Odd(Exception):
                def __init__(self, one, two):
                    super().__init__(one)
            def lost(): return {}["key"]
            def odd(): raise Odd(1, 2)
            def hidden(): return threading.Lock()
            def prepare(value): global it; it = value
            def prepared(): return it
            """,
        )
        self.assertEqual(lines[:3], ["KeyError 'key' True", "RuntimeError Odd: 1 True", "SystemExit  False"])
        self.assertRegex(
            lines[3], r"^PicklingError what hidden returned can't be sent to another process: cannot pickle '_thread.lock'.*cloudpickle"
        )
        self.assertEqual(lines[4:], ["3"])

    def test_workers_that_are_killed_fail_their_call_and_no_other(self):
        script = self.pool(
            """
            with Executor(max_workers=2) as pool:
                futures = [pool.submit(call, n, 0.3) for n in range(16)]
                print("begun")
                for future in futures:
                    try:
                        print(future.result()[0])
                    except WorkerDiedError as error:
                        print(type(error).__mro__[2].__name__, error)
            """
        )
        script.line()
        for count in (2, 6, 10):
            self.soon("begin", count)
            until(self.running, "a call runs")
            kill(self.running()[-1])
        code, out, err = script.end()
        self.assertEqual(code, 0, err)
        died = [line for line in out.splitlines() if "killed" in line]
        self.assertRegex(died[0], r"call: its worker \(pid \d+\) was killed by signal 9 \(SIGKILL\)$")
        self.assertLessEqual(1, len(died))
        self.assertEqual(len(died) + len(self.logged("end")), 16, out)
        self.assertEqual(set(self.logged("begin").values()), {1})  # no call twice
        self.assertEqual(self.held(), [])

    def test_retries_and_other_ends_of_workers(self):
        lines = self.output_of(
            """
            with Executor(max_workers=1, retries=2) as pool:
                print(pool.submit(fragile).result())
            with Executor(max_workers=1) as pool:
                for end in (leave, fault, orphan):
                    try:
                        pool.submit(end).result()
                    except WorkerDiedError as error:
                        print(str(error).partition(") ")[2])
            """,
            """
            def fragile():
                with witness("fragile"), open(LOG) as log:
                    if log.read().count("begin") < 3:
                        os.kill(os.getpid(), signal.SIGKILL)
                return "third time"
            def leave(): os._exit(3)
            def fault(): os.kill(os.getpid(), signal.SIGSEGV)
            def orphan():
                if os.fork() == 0:
                    time.sleep(600)  # with the worker's descriptors
                os._exit(0)
            """,
        )
        self.assertEqual(lines, ["third time", "ended with exit code 3", "was killed by signal 11 (SIGSEGV)", "ended with exit code 0"])
        self.assertEqual(self.logged("begin")["fragile"], 3)

    def test_nothing_is_left_of_a_pool_whose_process_is_killed(self):
        script = self.pool(
            """
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            pool = Executor(max_workers=4)  # two of them wait in the queue
            futures = [pool.submit(call, n, 600) for n in range(4)]
            futures[0].result()
            """
        )
        self.soon("begin", 2)
        until(lambda: len(self.gpu_owner("queue", "--json").decode().split('"position"')) == 3, "two wait")
        script.process.kill()
        script.end()
        until(lambda: not self.running() or all(not os.path.exists(f"/proc/{pid}") for pid in self.running()), "workers have ended")
        until(lambda: not self.left(), "nothing waits")
        self.soon_held([])
        self.assertEqual(sum(self.logged("begin").values()), 2)

    @unittest.skipUnless(IS_SOAK, "in npm run test:soak")
    def test_storms_of_kills_leave_nothing_and_run_no_call_twice(self):
        chance = random.Random(4)
        for storm in range(60):
            script = self.pool(
                f"""
                with Executor(max_workers=4) as pool:
                    for future in [pool.submit(call, f"{storm}-{{n}}", 0.1) for n in range(8)]:
                        print(type(future.exception()).__name__)
                """
            )
            begun = sum(self.logged("begin").values())
            for number in range(1, 3):
                self.soon("begin", begun + 2 * number)
                for pid in self.running(f"{storm}-"):
                    if chance.random() < 0.5:
                        kill(pid)
            if storm % 2 == 0:
                script.process.kill()
            code, out, _ = script.end()
            if storm % 2 == 1:
                self.assertEqual((code, set(out.split()) - {"NoneType", "WorkerDiedError"}), (0, set()))
            until(lambda: not self.left(), "workers have ended")
            self.soon_held([])
        self.assertEqual(set(self.logged("begin").values()), {1})  # no call twice

    def test_ctrl_c_ends_calls(self):
        script = self.pool(
            """
            with Executor(max_workers=2) as pool:
                list(pool.map(call, range(6), [600] * 6))
            """,
            start_new_session=True,
        )
        self.soon("begin", 2)
        os.killpg(script.pid, signal.SIGINT)
        code, _, err = script.end()
        self.assertEqual(code, -signal.SIGINT)
        self.assertEqual(err.count("Traceback"), 1, err)
        self.assertEqual(self.held(), [])
        self.assertEqual(sum(self.logged("begin").values()), 2)

    # Goes on with calls until another one has begun, so there is no end without handing GPUs over.
    UNTIL_BEGUN = """
        with Executor(max_workers=2) as pool:
            while f"begin {other}" not in open(LOG).read() if os.path.exists(LOG) else True:
                list(pool.map(call, [f"r{next(numbers)}" for _ in range(4)], [0.3] * 4))
            print("done")
        """

    def test_gpus_go_to_others_between_calls_and_come_back(self):
        script = self.pool(self.UNTIL_BEGUN, "import itertools\nnumbers, other = itertools.count(), 'other'")
        self.soon("begin", 2)
        self.gpu_owner(
            "run", "--wait=60s", "--gpus=2", "--", "sh", "-c", f"echo begin other 1 >> {self.calls}; echo end other 1 >> {self.calls}"
        )
        code, out, err = script.end()
        self.assertEqual((code, out), (0, "done\n"), err)
        self.assertEqual(set(self.logged("begin").values()), {1})
        self.assertEqual(self.logged("begin"), self.logged("end"))

    def test_a_preempted_call_is_run_again(self):
        script = self.pool(
            "with Executor(max_workers=1, preemptible=True, grace=1) as pool: print(pool.submit(patient).result())",
            """
            def patient():
                with witness("patient"), open(LOG) as log:
                    if log.read().count("begin") == 1:
                        time.sleep(600)
                return "done"
            """,
        )
        self.soon("begin", 1)
        self.gpu_owner("run", "--gpus=2", "--", "true")
        code, out, err = script.end()
        self.assertEqual((code, out), (0, "done\n"), err)
        self.assertIn("[1] gpu-owner: preempted", err)
        self.assertEqual((self.logged("begin")["patient"], self.logged("end")["patient"]), (2, 1))
        self.assertEqual(self.held(), [])

    def test_what_workers_print_has_their_number_or_goes_to_files(self):
        printing = "def speak(word):\n    print(word)\n    print('progress 1\\rprogress 2', file=sys.stderr)\n"
        code, out, err = self.pool("with Executor(max_workers=1) as pool: pool.submit(speak, 'hello').result()", printing).end()
        self.assertEqual((code, out, err), (0, "[1] hello\n", "[1] progress 2\n"))
        main = "with Executor(max_workers=1, output='out/%n.txt') as pool: pool.submit(speak, 'hello').result()"
        os.mkdir(os.path.join(self.directory, "out"))
        self.assertEqual(self.output_of(main, printing), [])
        self.assertIn("hello\n", pathlib.Path(self.directory, "out/1.txt").read_text())

    def test_a_pool_that_cannot_start_says_why(self):
        lines = self.output_of(
            """
            for options in ({"gpus": 3}, {"wait": 0.3}, {"initializer": bad}, {"command": "/nowhere"}):
                with Executor(max_workers=1, **options) as pool:
                    for future in [pool.submit(call, 1), pool.submit(call, 2)]:
                        print(type(future.exception()).__name__, str(future.exception()).splitlines()[0])
            """,
            "def bad(): raise ValueError('no data')",
        )
        self.assertEqual(lines[0], lines[1])
        self.assertEqual(lines[0], "UsageError 3 GPUs asked for, but this machine has 2:")
        self.assertEqual(set(lines[4:6]), {"WorkerDiedError a worker can't start: ValueError: no data"})
        self.assertRegex(lines[6], "^CommandNotFoundError '/nowhere' can't be started: No such file")

    def test_a_main_module_without_a_guard_is_told(self):
        path = os.path.join(self.directory, "unguarded.py")
        pathlib.Path(path).write_text(SOURCE + "with Executor(max_workers=1) as pool: print(pool.submit(call, 1).result())\n")
        code, _, err = self.start_words([*PYTHON, path]).end()
        self.assertEqual(code, 1)
        self.assertRegex(err, "WorkerDiedError: a worker can't start: UsageError: Executor: this is a worker.*if __name__ == '__main__'")

    def test_functions_of_a_notebook_need_cloudpickle(self):
        main = "from gpu_owner import Executor\ndef double(x): return 2 * x\n"
        main += "with Executor(max_workers=1) as pool:\n    print(*pool.map(double, [1, 2]), pool.submit(lambda: 5).result())\n"
        code, _, err = self.start_words([*PYTHON, "-c", main]).end()
        self.assertEqual(code, 1)
        self.assertRegex(
            err, "PicklingError: the call of double can't be sent to another process: it is defined in a notebook.*cloudpickle"
        )
        if importlib.util.find_spec("cloudpickle") is None:
            self.skipTest("needs cloudpickle")
        code, out, err = self.start_words([*SITE, "-c", main]).end()
        self.assertEqual((code, out), (0, "2 4 5\n"), err)

    @unittest.skipUnless(IS_SOAK and importlib.util.find_spec("optuna"), "in npm run test:soak, with optuna")
    def test_trials_of_optuna_have_gpus_of_their_own(self):
        recipe = (MODULE.parents[1] / "examples/recipes/optuna_executor.py").read_text().replace("n_trials=20", "n_trials=3")
        pathlib.Path(self.directory, "search.py").write_text(recipe)
        model = SOURCE + "def train(lr):\n    call(lr)\n    return lr\n"
        pathlib.Path(self.directory, "model.py").write_text(model)
        code, out, err = self.start_words([*SITE, os.path.join(self.directory, "search.py")]).end()
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"^\{'lr': [\d.e-]+\}\n$")
        self.assertEqual((len(self.logged("begin")), len(self.logged("end"))), (3, 3))
        self.assertIn('"lr"', pathlib.Path(self.directory, "study.log").read_text())
        self.assertEqual(self.held(), [])

        table = os.path.join(self.directory, "table.csv")
        rows = [f"t{n},{lr},{name},{lr}" for n, (lr, name) in enumerate(itertools.product(range(8), ("sgd", "adam")))]
        pathlib.Path(table).write_text("\n".join(["task_id,lr,optimizer,loss", *rows, ""]))
        program = MODULE.parents[1] / "examples/recipes/optuna_table.py"
        code, out, err = self.start_words([*SITE, str(program), table, "loss", "lr", "optimizer"]).end()
        self.assertEqual(code, 0, err)
        importances = ast.literal_eval(out)
        self.assertGreater(importances["lr"], importances["optimizer"])

    @unittest.skipUnless(IS_SOAK, "in npm run test:soak")
    def test_hundreds_of_short_calls_cost_little_more_than_those_of_the_standard_pool(self):
        lines = self.output_of(
            """
            best = {}
            with Executor(max_workers=2) as pool, concurrent.futures.ProcessPoolExecutor(2) as standard:
                for _ in range(2):
                    for each in (pool, standard):
                        list(each.map(time.sleep, [0] * 4))
                        begin = time.perf_counter()
                        list(each.map(time.sleep, [0.01] * 50))
                        took = time.perf_counter() - begin
                        best[each] = min(best.get(each, took), took)
            print(f"{best[pool] * 20:.1f} ms, {best[standard] * 20:.1f} ms per call")
            """
        )
        ours, standard = map(float, re.findall(r"[\d.]+(?= ms)", lines[0]))
        self.assertLess(ours, 1.5 * standard + 2, lines)


if __name__ == "__main__":
    unittest.main()
