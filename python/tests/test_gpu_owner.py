"""Tests of gpu_owner, with whole processes on simulated machines.

    python3 -m unittest discover python/tests          (in a clone that is built)

Whether a GPU is held is told by the kernel's locks, by `gpu-owner status`, or by the simulated driver's process table.
"""

import ast
import contextlib
import fcntl
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULE = ROOT / "python" / "gpu_owner"
COMMAND = ROOT / "bin" / "gpu-owner.cjs"
BINARIES = pathlib.Path(os.environ.get("GPU_OWNER_BUILD", ROOT / "build" / "Release"))
F_OFD_GETLK = 36
IS_SOAK = "GPU_OWNER_SOAK" in os.environ
WAIT_TIMEOUT_S = 30  # s; for what hangs: the machine may have much else to do
END_TIMEOUT_S = 300  # s; for a whole script that hangs: some start Node.js twenty times
# The module needs nothing but the standard library, and what machines add to site-packages may take longer to start than all else.
PYTHON = [sys.executable, "-S"]


def until(is_so, what):
    end = time.monotonic() + WAIT_TIMEOUT_S
    while True:
        asked = time.monotonic()
        if is_so():
            return
        now = time.monotonic()
        if now > end:
            raise AssertionError(f"not so within {WAIT_TIMEOUT_S} s: {what}")
        # A look that starts a program leaves the processors to what it waits for.
        time.sleep(min(max(0.02, 3 * (now - asked)), 0.3))


def kill(pid):
    """Ends a process, which may have ended by itself."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Script:
    """A running Python program on the machine, and what it prints."""

    def __init__(self, process):
        self.process = process
        self.pid = process.pid

    def line(self):
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"ended: {self.process.stderr.read()}")
        return line.rstrip("\n")

    def go(self):
        """Lets it go on from `input()`."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self):
        # Not communicate(): it doesn't know what line() has read ahead.
        timer = threading.Timer(END_TIMEOUT_S, self.process.kill)
        timer.start()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        out, err = self.process.stdout.read(), self.process.stderr.read()
        self.process.wait()
        timer.cancel()
        return self.process.returncode, out, err


class OnMachine(unittest.TestCase):
    machine = "4"

    def setUp(self):
        self.older = set(os.listdir("/proc"))
        self.directory = tempfile.mkdtemp(prefix="gpu-owner-python-")
        unwanted = ("CUDA_", "GPU_OWNER_", "NODE_EXTRA_CA_CERTS", "PYTHON")
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
        self.env.update(
            GPU_OWNER_SIMULATE=self.machine,
            GPU_OWNER_SIMULATE_DIR=self.directory,
            GPU_OWNER_MACHINE_CONFIG="/dev/null",
            XDG_CONFIG_HOME=os.path.join(self.directory, "none"),
            PYTHONPATH=str(MODULE.parent),
            PYTHONUNBUFFERED="1",
            SIMULATED_CUDA=str(BINARIES / "simulator" / "libcuda.so.1"),
        )
        if "GPU_OWNER_BUILD" in os.environ:
            self.env["GPU_OWNER_BUILD"] = os.environ["GPU_OWNER_BUILD"]
        self.scripts = []

    def tearDown(self):
        for script in self.scripts:
            if script.process.poll() is None:
                script.process.kill()
            script.process.wait()
            for stream in (script.process.stdin, script.process.stdout, script.process.stderr):
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        until(lambda: not self.left(), "all processes have ended")
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self, source, env=None, cwd=None, **options):
        words = [*PYTHON, "-W", "error", "-c", "import gpu_owner, os, sys, time\n" + textwrap.dedent(source)]
        return self.start_words(words, env, cwd, **options)

    def start_words(self, words, env=None, cwd=None, **options):
        pipe = subprocess.PIPE
        everything = {**self.env, **(env or {})}
        process = subprocess.Popen(
            words, stdin=pipe, stdout=pipe, stderr=pipe, env=everything, cwd=cwd or self.directory, universal_newlines=True, **options
        )
        self.scripts.append(Script(process))
        return self.scripts[-1]

    def run_script(self, source, env=None):
        """Runs it to its end; it must succeed and say nothing on standard error. Returns the lines that it printed."""
        code, out, err = self.start(source, env).end()
        self.assertEqual((code, err), (0, ""))
        return out.splitlines()

    def gpu_owner(self, *args):
        return subprocess.run([str(COMMAND), *args], env=self.env, stdout=subprocess.PIPE, check=True, stdin=subprocess.DEVNULL).stdout

    def simulate(self, *args):
        """The simulator's own program, which needs no Node.js."""
        return subprocess.check_output([str(BINARIES / "gpu-owner-simulator"), *args], env=self.env)

    def status(self):
        return json.loads(self.gpu_owner("status", "--json").decode())

    def held(self):
        """The GPUs whose lease files have byte 0 locked: the kernel says so, and nothing is taken. UUIDs of machines with names are others."""
        machine = self.env["GPU_OWNER_SIMULATE"]
        if not machine.isdigit():
            return [gpu["index"] for gpu in self.status() if gpu["state"] == "leased"]
        gpus = set()
        for path in pathlib.Path(self.directory, machine, "locks").glob("GPU-*.lease"):
            with open(str(path), "r+b") as file:
                probe = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
                if struct.unpack("hhqqi4x", fcntl.fcntl(file, F_OFD_GETLK, probe))[0] != fcntl.F_UNLCK:
                    gpus.add(int(path.name[len("GPU-") + 35]))
        return sorted(gpus)

    def soon_held(self, expected):
        until(lambda: self.held() == expected, f"held are {expected}")

    def left(self):
        """Processes of gpu-owner on this machine: they have its directory in their environment."""
        found = []
        for pid in set(filter(str.isdigit, os.listdir("/proc"))) - self.older:
            try:
                if self.directory.encode() not in pathlib.Path("/proc", pid, "environ").read_bytes():
                    continue
                words = pathlib.Path("/proc", pid, "cmdline").read_bytes()
            except OSError:
                continue
            if b"gpu-owner" in words.split(b"\0import", 1)[0]:
                found.append(words)
        return found

    @contextlib.contextmanager
    def occupied(self, *options):
        """Another process holds GPUs meanwhile."""
        pipe = subprocess.PIPE
        with subprocess.Popen([str(COMMAND), "hold", *options], env=self.env, stdin=pipe, stdout=pipe) as holder:
            assert holder.stdin is not None and holder.stdout is not None
            if not holder.stdout.readline():
                raise AssertionError("somebody has the GPUs already")
            try:
                yield holder
            finally:
                holder.stdin.close()


class Releasing(OnMachine):
    def test_with_block(self):
        script = self.start(
            """
            with gpu_owner.claim(2) as gpus:
                print(os.environ["CUDA_VISIBLE_DEVICES"] == gpus.visible_devices == ",".join(gpu.uuid for gpu in gpus))
                input()
            print("CUDA_VISIBLE_DEVICES" in os.environ)
            input()
            """
        )
        self.assertEqual(script.line(), "True")
        self.assertEqual(self.held(), [0, 1])
        script.go()
        self.assertEqual(script.line(), "False")
        self.assertEqual(self.held(), [])  # at once: the end of the block waits for it
        self.assertEqual(self.left(), [])
        script.go()
        self.assertEqual(script.end(), (0, "", ""))

    def test_every_orderly_end_frees_before_the_process_has_ended(self):
        for ending, code in (
            ("sys.exit(3)", 3),
            ("raise RuntimeError('mine')", 1),
            ("with gpus: raise RuntimeError('mine')", 1),
        ):
            with self.subTest(ending):
                ended, out, err = self.start(f"gpus = gpu_owner.claim()\nprint(gpus.held)\n{ending}").end()
                self.assertEqual((ended, out), (code, "True\n"), err)
                self.assertEqual("mine" in err, code == 1)
                self.assertEqual(self.held(), [])

    def test_the_end_of_the_interpreter_waits_for_it(self):
        source = """
            import atexit, json, os, subprocess
            def look():  # registered first, called last
                command = [os.environ["GPU_OWNER_COMMAND"], "status", "--json"]
                print([gpu["state"] for gpu in json.loads(subprocess.check_output(command).decode())], living)
            atexit.register(look)
            import gpu_owner
            gpus = gpu_owner.claim()
            living = [gpus._holding.holder.process.pid]
            atexit.register(lambda: living.append(os.path.exists(f"/proc/{living.pop()}")))  # before the module's own
            """
        script = self.start_words([*PYTHON, "-c", textwrap.dedent(source)], {"GPU_OWNER_COMMAND": str(COMMAND)})
        self.assertEqual(script.end(), (0, "['free', 'free', 'free', 'free'] [True]\n", ""))

    def test_killed_or_ended_without_a_word(self):
        for ending in ("os._exit(1)", "os.kill(os.getpid(), 9)"):
            with self.subTest(ending):
                script = self.start(f"gpus = gpu_owner.claim(4)\nprint('claimed')\ninput()\n{ending}")
                script.line()
                self.assertEqual(self.held(), [0, 1, 2, 3])
                script.go()
                self.assertNotEqual(script.end()[0], 0)
                self.soon_held([])

    def test_hold_killed_by_somebody(self):
        script = self.start(
            """
            gpus = gpu_owner.claim()
            print(gpus.held)
            input()
            print(gpus.held, repr(gpus))
            gpus.release()
            print(os.environ.get("CUDA_VISIBLE_DEVICES"))
            """
        )
        self.assertEqual(script.line(), "True")
        os.kill(self.status()[0]["lease"]["pid"], signal.SIGKILL)
        self.soon_held([])
        script.go()
        self.assertEqual(script.line(), "False <Claim of cuda:0 = GPU 0 (Simulated GPU); not held>")
        self.assertEqual(script.end(), (0, "None\n", ""))


class Once(OnMachine):
    def test_several_jobs_of_a_process_share_one_claim(self):
        script = self.start(
            """
            import ctypes, threading
            jobs = []
            def job():
                with gpu_owner.claim(once=True, wait=False) as gpus:
                    jobs.append(gpus)
            threads = [threading.Thread(target=job) for _ in range(4)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            ctypes.CDLL(os.environ["SIMULATED_CUDA"]).cuInit(0)   # as a training does
            job()
            print(len(jobs), all(one is jobs[0] for one in jobs), [gpu.index for gpu in jobs[0]])
            input()
            try: gpu_owner.claim(2, once=True)
            except gpu_owner.UsageError as error: print(error)
            jobs[0].release()
            print(jobs[0].held)
            again = gpu_owner.claim(once=True)
            print(again is jobs[0], [gpu.index for gpu in again])
            input()
            """
        )
        self.assertEqual(script.line(), "5 True [0]")
        self.assertEqual(self.held(), [0])  # after the ends of all `with` blocks
        script.go()
        self.assertEqual(script.line(), "once: this process has claimed 1 GPU(s) already, not 2; release() that claim first")
        self.assertEqual([script.line(), script.line()], ["False", "False [0]"])
        script.go()
        self.assertEqual(script.end(), (0, "", ""))
        self.soon_held([])


class Interrupting(OnMachine):
    def waiting(self, **options):
        script = self.start("gpu_owner.claim(4)", **options)
        self.assertIn("waiting for 4 GPUs", script.process.stderr.readline())
        return script

    def test_ctrl_c_while_it_waits(self):
        with self.occupied():
            script = self.waiting()
            script.process.send_signal(signal.SIGINT)
            code, _, err = script.end()
            self.assertEqual(code, -signal.SIGINT)
            self.assertIn("KeyboardInterrupt", err)
            self.assertEqual(self.held(), [0])
            self.assertEqual(len(self.left()), 1 + 1, self.left())  # the occupant and its placeholder

    def test_ctrl_c_ends_no_claim(self):
        script = self.start(
            """
            gpus = gpu_owner.claim()
            try:
                print("claimed")
                time.sleep(60)
            except KeyboardInterrupt:  # as the kernel of a notebook does with a cell's
                print("interrupted")
            print(gpus.held)
            input()
            """,
            start_new_session=True,
        )
        script.line()
        os.killpg(script.pid, signal.SIGINT)  # as a terminal does
        self.assertEqual([script.line(), script.line()], ["interrupted", "True"])
        self.assertEqual(self.held(), [0])


class Children(OnMachine):
    def test_a_forked_child_ends_nothing(self):
        for ending in ("sys.exit()", "gpus.release(); os._exit(0)"):
            with self.subTest(ending):
                script = self.start(
                    f"""
                    gpus = gpu_owner.claim()
                    parent = os.getpid()
                    with gpus:
                        if os.fork() == 0:
                            {ending}
                        else:
                            os.wait()
                            print(gpus.held)
                            input()
                    if os.getpid() == parent:
                        print(os.environ.get("CUDA_VISIBLE_DEVICES"))
                    else:
                        assert os.environ["CUDA_VISIBLE_DEVICES"] == gpus.visible_devices
                    """
                )
                self.assertEqual(script.line(), "True")
                self.assertEqual(self.held(), [0])
                script.go()
                self.assertEqual(script.end(), (0, "None\n", ""))

    def test_a_child_forked_past_python_does_not_hinder_release(self):
        script = self.start(
            """
            import ctypes
            gpus = gpu_owner.claim()
            pid = ctypes.CDLL(None).fork()
            if pid == 0:
                time.sleep(600)
                os._exit(0)
            start = time.monotonic()
            gpus.release()
            print(pid, time.monotonic() - start)
            input()
            """
        )
        child, seconds = script.line().split()
        self.assertEqual(self.held(), [])
        self.assertLess(float(seconds), 4)  # or it was waited for in vain
        kill(int(child))

    def test_forks_while_another_thread_claims(self):
        script = self.start(
            """
            import threading, warnings
            warnings.simplefilter("ignore")  # Python 3.12 warns of forks in programs with threads
            children = []
            def claim():
                for _ in range(5):
                    gpus = gpu_owner.claim(2)
                    gpus.release()
                kept.append(gpu_owner.claim(2))
            kept = []
            thread = threading.Thread(target=claim)
            thread.start()
            while thread.is_alive():
                pid = os.fork()
                if pid == 0:
                    time.sleep(600)
                    os._exit(0)
                children.append(pid)
                time.sleep(0.01)
            print(*children)
            input()
            """
        )
        children = [int(pid) for pid in script.line().split()]
        try:
            self.assertGreater(len(children), 5)
            self.assertEqual(self.held(), [0, 1])
            script.process.kill()
            self.soon_held([])
        finally:
            for pid in children:
                kill(pid)

    def program(self, source):
        path = os.path.join(self.directory, "program.py")
        pathlib.Path(path).write_text("import gpu_owner, multiprocessing, os, sys\n" + textwrap.dedent(source))
        return path

    def test_multiprocessing(self):
        path = self.program(
            """
            def work(gpu):
                return f"cuda:{gpu} {gpu.index} {gpu.uuid == os.environ['CUDA_VISIBLE_DEVICES'].split(',')[gpu]}"

            def count(gpus):
                return type(gpus).__name__, [gpu.name for gpu in gpus]

            if __name__ == "__main__":
                gpus = gpu_owner.claim(2, devices="2-3")
                for method in ("fork", "spawn"):
                    with multiprocessing.get_context(method).Pool(2) as pool:
                        print(method, pool.map(work, gpus), pool.apply(count, [gpus]), gpus.held)
                    input()
            """
        )
        script = self.start_words([*PYTHON, path])
        expected = "['cuda:0 2 True', 'cuda:1 3 True'] ('list', ['Simulated GPU', 'Simulated GPU']) True"
        for method in ("fork", "spawn"):
            self.assertEqual(script.line(), f"{method} {expected}")
            self.assertEqual(self.held(), [2, 3])
            script.go()
        self.assertEqual(script.end()[::2], (0, ""))
        self.assertEqual(self.held(), [])

    def test_each_worker_of_a_pool_may_claim(self):
        path = self.program(
            """
            gpus = None

            def begin(given):
                global barrier
                barrier = given

            def work(_):
                global gpus
                if gpus is None:
                    gpus = gpu_owner.claim()
                    barrier.wait()  # so that each worker gets a task
                return gpus[0].index

            if __name__ == "__main__":
                context = multiprocessing.get_context(sys.argv[1])
                with context.Pool(2, begin, [context.Barrier(2, timeout=100)]) as pool:
                    print(sorted(set(pool.map(work, range(4), 1))))
                    input()
            """
        )
        script = self.start_words([*PYTHON, path, "spawn"])
        self.assertEqual(script.line(), "[0, 1]")
        self.assertEqual(self.held(), [0, 1])
        script.go()
        self.assertEqual(script.end()[::2], (0, ""))
        self.soon_held([])

    def test_spawn_that_runs_the_main_module_again_is_told_at_once(self):
        path = self.program(
            """
            gpus = gpu_owner.claim()
            if __name__ == "__main__":
                child = multiprocessing.get_context("spawn").Process(target=print)
                child.start()
                child.join(10)
                print(child.exitcode)
            """
        )
        code, out, err = self.start_words([*PYTHON, path]).end()
        self.assertEqual((code, out), (0, "1\n"))
        self.assertIn("if __name__ == '__main__'", err)


class Racing(OnMachine):
    machine = "2"

    def test_nobody_meets_anybody(self):
        """
        The witness is a lock of another kind, which each takes on a file of its GPU's while it has it. The kernel ends POSIX locks of
        a killed process before it closes the pipe to `hold`; locks of flock end in any order with that.
        """
        source = """
            import fcntl, random
            random.seed(int(sys.argv[1]))
            witnesses = {gpu.uuid: open(gpu.uuid, "w") for gpu in gpu_owner.status()}
            for _ in range(int(sys.argv[2])):
                gpus = gpu_owner.claim()
                witness = witnesses[gpus[0].uuid]
                fcntl.lockf(witness, fcntl.LOCK_EX | fcntl.LOCK_NB)
                print(gpus[0].index, flush=True)
                time.sleep(random.uniform(0, 0.05))
                if random.random() < 0.15:
                    os.kill(os.getpid(), 9)
                fcntl.lockf(witness, fcntl.LOCK_UN)
                gpus.release()
            """
        words = [*PYTHON, "-c", "import gpu_owner, os, sys, time\n" + textwrap.dedent(source)]
        rounds = 20 if IS_SOAK else 4
        scripts = [self.start_words([*words, str(seed), str(rounds)]) for seed in range(rounds)]
        ends = [script.end() for script in scripts]
        self.assertEqual({code for code, _, _ in ends} - {0, -9}, set(), ends)
        self.assertGreater(sum(len(out.split()) for _, out, _ in ends), 2 * rounds)
        self.soon_held([])


class Environment(OnMachine):
    def test_two_claims_are_shown_together(self):
        self.assertEqual(
            self.run_script(
                """
                def show(*gpus):
                    visible = [uuid[-1] for uuid in os.environ.get("CUDA_VISIBLE_DEVICES", "none").split(",")]
                    print(visible, *[[(int(gpu), gpu.index) for gpu in one] for one in gpus])
                first = gpu_owner.claim(2, devices=[3, 1])
                second = gpu_owner.claim(devices=0)
                show(first, second)
                first.release()
                show(second)
                third = gpu_owner.claim()
                show(second, third)
                second.release(); third.release()
                show()
                """
            ),
            ["['1', '3', '0'] [(0, 1), (1, 3)] [(2, 0)]", "['0'] [(0, 0)]", "['0', '1'] [(0, 0)] [(1, 1)]", "['e']"],
        )

    def test_restored_unless_somebody_has_changed_it(self):
        script = """
            with gpu_owner.claim() as gpus:
                print(gpus[0].index)
                {}
            print(os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER"), [name for name in os.environ if "CLAIM" in name])
            """
        env = {"CUDA_VISIBLE_DEVICES": "2,3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        self.assertEqual(self.run_script(script.format("pass"), env), ["2", "2,3 PCI_BUS_ID []"])
        changed = script.format("os.environ['CUDA_VISIBLE_DEVICES'] = 'mine'")
        self.assertEqual(self.run_script(changed, env), ["2", "mine PCI_BUS_ID []"])

    def test_numbers(self):
        lines = self.run_script(
            """
            with gpu_owner.claim(2, devices="2-3", visible_devices="index") as gpus:
                print(os.environ["CUDA_VISIBLE_DEVICES"], os.environ["CUDA_DEVICE_ORDER"], gpus)
                try:
                    gpu_owner.claim(visible_devices="uuid")
                except ValueError as error:
                    print(error.code)
                more = gpu_owner.claim()
                print(os.environ["CUDA_VISIBLE_DEVICES"], more)
            print(os.environ["CUDA_VISIBLE_DEVICES"], more)
            more.release()
            print(os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER"))
            """
        )
        self.assertEqual(lines, ["2,3 PCI_BUS_ID [0, 1]", "ERR_INVALID_ARGUMENT", "2,3,0 [2]", "0 [0]", "None None"])

    def test_threads(self):
        lines = self.run_script(
            """
            import threading
            seen, everybody = [], threading.Barrier(4)
            def work():
                with gpu_owner.claim() as gpus:
                    everybody.wait()
                    seen.append((gpus[0].uuid, os.environ["CUDA_VISIBLE_DEVICES"].split(",")[gpus[0]]))
                    everybody.wait()
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            print(len({uuid for uuid, _ in seen}), all(uuid == shown for uuid, shown in seen), "CUDA_VISIBLE_DEVICES" in os.environ)
            """
        )
        self.assertEqual(lines, ["4 True False"])


CUDA = """
import ctypes
def cuda():
    global library
    library = ctypes.CDLL(os.environ["SIMULATED_CUDA"])
    return library
def use(ordinal):
    uuid, context = (ctypes.c_ubyte * 16)(), ctypes.c_void_p()
    assert cuda().cuInit(0) == 0
    assert library.cuDeviceGetUuid_v2(uuid, ordinal) == 0
    assert library.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal) == 0
    return bytes(uuid).hex()
def same(gpu):
    return use(int(gpu)) == gpu.uuid[4:].replace("-", "")
"""


class WithCUDA(OnMachine):
    def cuda_script(self, source):
        return self.start(CUDA + textwrap.dedent(source))

    def test_the_number_is_the_ordinal(self):
        script = self.cuda_script(
            """
            first, second = gpu_owner.claim(2), gpu_owner.claim(2)
            first.release()
            print(all(same(gpu) for gpu in second), [gpu.index for gpu in second])
            input()
            """
        )
        self.assertEqual(script.line(), "True [2, 3]")
        shown = json.loads(self.simulate("show", "--json").decode())
        pids = [[process["pid"] for process in gpu["processes"]] for gpu in shown["gpus"]]
        self.assertEqual([script.pid in those for those in pids], [False, False, True, True])

    def test_refused_once_cuda_is_initialised(self):
        code, out, err = self.cuda_script(
            """
            cuda()
            gpu_owner.claim().release()  # loaded is not initialised
            library.cuInit(0)
            sys.modules["tensorflow"] = os
            try:
                gpu_owner.claim()
            except gpu_owner.CUDAInitializedError as error:
                print(error.code, error)
            """
        ).end()
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out, r"^ERR_CUDA_INITIALIZED CUDA was initialised .*\(loaded here: tensorflow\).*restart the kernel.*run")
        self.assertEqual(self.held(), [])

    def test_refused_where_only_pytorch_knows(self):
        lines = self.run_script(
            """
            import types
            torch = sys.modules["torch"] = types.ModuleType("torch")
            torch.cuda = types.SimpleNamespace(is_initialized=lambda: False)
            gpu_owner.claim().release()
            for is_initialized in (True, False):
                torch.cuda = types.SimpleNamespace(is_initialized=lambda: is_initialized, _is_in_bad_fork=lambda: not is_initialized)
                try:
                    gpu_owner.claim()
                except RuntimeError as error:
                    print(error.code, "get_context('spawn')" in str(error))
            """
        )
        self.assertEqual(lines, ["ERR_CUDA_INITIALIZED False", "ERR_CUDA_INITIALIZED True"])

    def test_a_process_may_have_the_same_gpus_again(self):
        script = self.cuda_script(
            """
            gpus = gpu_owner.claim(2, devices="1-2")
            print(all(same(gpu) for gpu in gpus))
            try:
                gpu_owner.claim()  # a cell that is run again
            except gpu_owner.CUDAInitializedError as error:
                print("this process already holds GPU 1, GPU 2 of them" in str(error))
            gpus.release()
            again = gpu_owner.claim(devices=2)
            print(again, same(again[0]), again[0].index, os.environ["CUDA_VISIBLE_DEVICES"] == again[0].uuid)
            other = gpu_owner.claim(wait=False)
            print(other, same(other[0]), other[0].index)
            again.release(); other.release()
            input()
            try:
                gpu_owner.claim(2, wait=False)
            except gpu_owner.GPUUnavailableError as error:
                print("stranger (pid" in str(error) and f"pid {os.getpid()}" not in str(error))
            print(gpu_owner.claim(wait=False))
            """
        )
        self.assertEqual([script.line() for _ in range(4)], ["True", "True", "[1] True 2 True", "[0] True 1"])
        occupy = [str(COMMAND), "simulate", "occupy", "1", "--name", "stranger"]
        pipe = subprocess.PIPE
        with subprocess.Popen(occupy, env=self.env, stdin=pipe, stdout=pipe) as stranger:
            assert stranger.stdin is not None and stranger.stdout is not None
            stranger.stdout.readline()
            script.go()
            self.assertEqual(script.end(), (0, "True\n[1]\n", ""))
            stranger.stdin.close()


class Exec(OnMachine):
    def test_exec_says_that_it_ends_a_claim(self):
        for call in ("os.execlp(sys.executable, *words)",):
            script = self.start(f"gpus = gpu_owner.claim(2)\nwords = [sys.executable, '-c', 'print(1); input()']\n{call}")
            self.assertEqual(script.line(), "1")
            self.soon_held([])
            script.go()
            code, _, err = script.end()
            self.assertEqual(code, 0)
            self.assertRegex(err, r"^gpu-owner: os[.]execve? ends this process's claim of GPU 0, GPU 1 \(claimed at <string>:2\): .*\n$")


class Waiting(OnMachine):
    machine = "1"

    def test_says_for_what_and_goes_on(self):
        with self.occupied() as holder:
            script = self.start(
                """
                import io
                class Cell(io.StringIO):
                    def write(self, text):
                        print(text.splitlines())
                        return super().write(text)
                sys.stderr = Cell()
                gpus = gpu_owner.claim()
                print(gpus.held, sys.stderr.getvalue().count("\\n"))
                """
            )
            self.assertRegex(
                script.line(), r"^\['gpu-owner: waiting for a GPU, 1st in the queue:', '  GPU 0: leased by .*'\]$"
            )  # and it still waits
            holder.stdin.close()
            self.assertEqual(script.line(), "True 2")
            self.assertEqual(script.end(), (0, "", ""))

    def test_limits(self):
        with self.occupied():
            lines = self.run_script(
                """
                for wait in (False, 0, 0.3, "200ms"):
                    sys.stderr = open(os.devnull, "w")
                    try:
                        gpu_owner.claim(wait=wait)
                    except gpu_owner.GPUUnavailableError as error:
                        print(type(error).__name__, error.code, error.exit_code, str(error).split(":")[0])
                    sys.stderr.close()
                    sys.stderr = sys.__stderr__
                """
            )
        unavailable = "GPUUnavailableError ERR_GPU_UNAVAILABLE 75 1 GPU asked for, none is free"
        self.assertEqual(lines[:2], [unavailable] * 2)
        self.assertEqual(lines[2:], [f"WaitTimeoutError ERR_TIMEOUT 75 timed out after {ms} ms" for ms in (300, 200)])


class Parameters(OnMachine):
    machine = "mixed"

    def test_criteria(self):
        lines = self.run_script(
            """
            def which(**criteria):
                try:
                    with gpu_owner.claim(wait=False, **criteria) as gpus:
                        return gpus[0].index
                except gpu_owner.GPUUnavailableError:
                    return None
            print(which(min_free_memory="30GiB"), which(min_free_memory=30e9), which(min_free_memory="90GiB"))
            print(which(exclude=["A100", "*4090*"]), which(devices=["2", 1], exclude=2), which(devices=0, max_power=80, force=True))
            with gpu_owner.claim(devices=2) as gpus:
                with gpu_owner.claim(exclude=gpus[0]) as more:
                    print(more[0].index, more[0] == 1)
            """
        )
        self.assertEqual(lines, ["2 2 None", "0 1 0", "1 True"])

    def test_mistakes(self):
        lines = self.run_script(
            """
            for mistake in (
                dict(count=0), dict(count=4), dict(count=True), dict(count="2"), dict(count=1.5), dict(wait=-1), dict(wait=float("nan")), dict(wait="soon"),
                dict(wait=[]), dict(min_free_memory="20 bananas"), dict(min_free_memory=20), dict(max_used_memory="20"), dict(max_power="much"), dict(devices=[]), dict(devices=9), dict(devices=1.5),
                dict(placeholder="no"), dict(visible_devices="name"), dict(devices=["-x"]),
            ):
                try:
                    gpu_owner.claim(**mistake)
                except ValueError as error:
                    if error.code != "ERR_INVALID_ARGUMENT" or list(mistake)[0] not in str(error) and "GPUs asked" not in str(error):
                        print(mistake, error)
                else:
                    print("no error:", mistake)
            """
        )
        self.assertEqual(lines, [])

    def test_where_the_command_is(self):
        lonely = os.path.join(self.directory, "lonely")
        shutil.copytree(str(MODULE), os.path.join(lonely, "gpu_owner"), ignore=shutil.ignore_patterns("__pycache__"))
        env = {"PYTHONPATH": lonely, "PATH": "/nowhere", "HOME": self.directory}
        source = """
            def attempt(**options):
                try:
                    return len(gpu_owner.claim(**options))
                except gpu_owner.CommandNotFoundError as error:
                    return "GPU_OWNER_COMMAND" in str(error) or "GPU_OWNER_NODE" in str(error)
            print(attempt(), attempt(command="/nonexistent/gpu-owner"), attempt(command=[sys.executable, "-c", "raise SystemExit(127)"]))
            """
        if not any(os.path.exists(path) for path in ("/usr/local/bin/gpu-owner", "/opt/gpu-owner/bin/gpu-owner.cjs")):
            self.assertEqual(self.run_script(source, env), ["True True True"])
        # Node.js isn't in PATH: gpu-owner says so itself.
        self.assertEqual(
            self.run_script(
                "print(1)\ntry: gpu_owner.claim()\nexcept gpu_owner.CommandNotFoundError as error: print('GPU_OWNER_NODE' in str(error))",
                {**env, "GPU_OWNER_COMMAND": str(COMMAND)},
            ),
            ["1", "True"],
        )
        node = shutil.which("node")
        for command in (str(COMMAND), f"{node} '{COMMAND}'"):
            self.assertEqual(
                self.run_script(
                    "gpus = gpu_owner.claim(); print(len(gpus))", {**env, "GPU_OWNER_COMMAND": command, "GPU_OWNER_NODE": node}
                ),
                ["1"],
            )


class Shares(OnMachine):
    machine = "2"

    def test_several_processes_have_parts_of_one_gpu(self):
        source = """
            with gpu_owner.claim(memory="25GiB", placeholder="none", devices=0) as gpus:
                print(gpus[0].index, gpus.memory == 25 * 2**30)
                input()
            """
        scripts = [self.start(source) for _ in range(3)]
        self.assertEqual([script.line() for script in scripts], ["0 True"] * 3)
        lines = self.run_script(
            """
            first = gpu_owner.status()[0]
            print(first.state, sorted(share["bytes"] >> 30 for share in first.shares), gpu_owner.is_gpu_locked(0))
            for options in (dict(memory="25GiB"), dict()):
                try:
                    gpu_owner.claim(wait=False, devices=0, **options)
                except gpu_owner.GPUUnavailableError as error:
                    print(str(error).splitlines()[1])
            try:
                gpu_owner.claim(memory="lots")
            except gpu_owner.UsageError as error:
                print(str(error).split(":")[0])
            """
        )
        self.assertEqual(lines[0], "shared [25, 25, 25] True")
        self.assertRegex(lines[1], r"^  GPU 0: 4.5 GiB of 79.5 GiB are left \(memory: 25 GiB\); 75 GiB")
        self.assertRegex(lines[2], "^  GPU 0: 75 GiB of 79.5 GiB leased in shares by ")
        self.assertEqual(lines[3], "memory")
        for script in scripts:
            script.go()
            self.assertEqual(script.end()[:2], (0, ""))

    def test_limit_memory(self):
        torch = """
            import types
            torch = sys.modules["torch"] = types.ModuleType("torch")
            torch.cuda = types.SimpleNamespace(
                is_initialized=lambda: False,
                device_count=lambda: len(os.environ["CUDA_VISIBLE_DEVICES"].split(",")),
                get_device_properties=lambda ordinal: types.SimpleNamespace(total_memory=80 * 2**30),
                set_per_process_memory_fraction=lambda part, ordinal: print(ordinal, part),
            )
            """
        claim = """
            gpus = gpu_owner.claim(2, memory="20GiB", placeholder="none")
            print(gpu_owner.limit_memory() == 20 * 2**30)
            gpus.release()
            whole = gpu_owner.claim(placeholder="none")
            print(gpu_owner.limit_memory())
            """
        self.assertEqual(self.run_script(torch + claim), ["0 0.25", "1 0.25", "True", "None"])
        job = {"GPU_OWNER_MEMORY": str(40 * 2**30), "CUDA_VISIBLE_DEVICES": "0"}
        self.assertEqual(self.run_script(torch + "print(gpu_owner.limit_memory() >> 30)", job), ["0 0.5", "40"])
        without = """
            sys.modules["torch"] = None
            try:
                gpu_owner.limit_memory()
            except gpu_owner.UsageError as error:
                print(error.code)
            """
        self.assertEqual(self.run_script(without, job), ["ERR_INVALID_ARGUMENT"])
        self.assertEqual(self.run_script(without), [])


class AsTheCommand(OnMachine):
    """Criteria and readings are those of the command."""

    def test_every_criterion_is_a_parameter_and_reaches_the_command(self):
        group = self.gpu_owner("run", "--help", "--all").decode().split("Which GPUs are accepted")[1].split("\n\n")[0]
        criteria = sorted(name.replace("-", "_") for name in re.findall(r"^  --([a-z-]+)", group, re.MULTILINE))
        self.assertIn("max_temperature", criteria)
        lines = self.run_script(
            """
            import inspect, json
            # Fails, and says what it was called with.
            program = "import json, sys; sys.exit(json.dumps({'error': {'code': 'ERR_DRIVER', 'message': ' '.join(sys.argv[1:])}}))"
            command = [sys.executable, "-S", "-c", program]
            for call, words in ((gpu_owner.claim, []), (gpu_owner.status, []), (gpu_owner.submit, [["true"]])):
                parameters = list(inspect.signature(call).parameters)
                said = ""
                try:
                    call(*words, command=command, **{name: "1" for name in parameters if name in %r})
                except gpu_owner.GPUOwnerError as error:
                    said = str(error)  # with `--max-power` as max_power
                print(json.dumps([parameters, said.replace("=", " ").split()]))
            """
            % criteria
        )
        for call, (parameters, said) in zip(("claim", "status", "submit"), map(json.loads, lines)):
            with self.subTest(call):
                self.assertEqual([name for name in criteria if name not in parameters], [], "it has no such parameter")
                self.assertEqual([name for name in criteria if name not in said], [], "the command doesn't get them under their names")

    def test_every_reading_is_a_property(self):
        gpu = self.status()[0]
        readings = {name: value for name, value in gpu.items() if type(value) in (int, float)}
        readings.update((f"memory_{name[:-5]}", value) for name, value in gpu["memory"].items() if name != "reservedBytes")
        self.assertIn("memory_free", readings)
        names = {re.sub("[A-Z]", lambda letter: "_" + letter.group().lower(), name): value for name, value in readings.items()}
        lines = self.run_script(
            f"""
            import json
            gpu = gpu_owner.status()[0]
            print(json.dumps({{name: getattr(gpu, name, "missing") for name in {list(names)!r}}}))
            """
        )
        self.assertEqual(json.loads(lines[0]), names)


class Looking(OnMachine):
    machine = "mixed"

    def test_an_instance_of_mig_can_be_claimed_and_excluded_itself(self):
        lines = self.run_script(
            """
            machine, os.environ["GPU_OWNER_SIMULATE"] = os.environ["GPU_OWNER_SIMULATE"], "a100x4-mig"
            instances = [gpu for gpu in gpu_owner.status() if gpu.index == 0 and gpu.instance is not None]
            print(instances[2])
            print(repr(instances[2]))
            with gpu_owner.claim(devices=instances[2]) as gpus:
                print(gpus[0].index, gpus[0].instance, gpus[0].uuid == instances[2].uuid)
            with gpu_owner.claim(devices=instances, exclude=instances[:3]) as gpus:
                print(gpus[0].uuid == instances[3].uuid)
            os.environ["GPU_OWNER_SIMULATE"] = machine
            print([gpu.instance for gpu in gpu_owner.status()])
            """
        )
        shown = "<GPU 0:3: NVIDIA A100-SXM4-80GB MIG 1g.10gb, free>"
        self.assertEqual(lines, ["0", shown, "0 3 True", "True", "[None, None, None]"])

    def test_status(self):
        with self.occupied("--devices", "1"):
            lines = self.run_script(
                """
                gpus = gpu_owner.status()
                print([(int(gpu), f"{gpu}", gpu.state) for gpu in gpus])
                gpu = gpus[1]
                print(gpu.lease["pid"] > 0, gpu.lease["command"], gpu.reason.startswith("leased by"), gpus[0].lease)
                print(gpu.name, gpu.uuid.startswith("GPU-"), gpu.memory_total == gpu.memory_used + gpu.memory_free + gpu.raw["memory"]["reservedBytes"])
                print([process["type"] for process in gpu.processes], gpu.temperature_celsius, gpu.power_limit_watts)
                print(gpus[0].power_watts)  # a card without a sensor
                print([gpu["gpu_id"] for gpu in gpu_owner.find_free_gpus()], len(gpu_owner.find_free_gpus(memory_free_threshold_gb=20)))
                print([gpu["gpu_id"] for gpu in gpu_owner.find_free_gpus(min_free_memory="20GiB", devices=0)], gpu_owner.find_free_gpus(max_power=1))
                try:
                    gpu_owner.find_free_gpus(bananas=1)
                except TypeError as error:
                    print(error)
                """
            )
        gpu = self.status()[1]
        self.assertEqual(
            lines,
            [
                "[(0, '0', 'free'), (1, '1', 'leased'), (2, '2', 'free')]",
                "True gpu-owner hold --devices 1 True None",
                f"{gpu['name']} True True",
                f"['compute'] {gpu['temperatureCelsius']} {gpu['powerLimitWatts']}",
                "None",
                "[0, 2] 1",
                "[] []",
                "find_free_gpus() got an unexpected keyword argument 'bananas'",
            ],
        )

    def test_as_the_scheduler_told_it(self):
        lines = self.run_script(
            """
            for gpu in gpu_owner.get_gpu_info():
                print(f"GPU {gpu['gpu_id']}: {gpu['name']} {gpu['memory_free']}MB / {gpu['memory_total']}MB {gpu['power_draw']}W / {gpu['power_limit']}W {gpu['utilization']}%")
            info, free = gpu_owner.get_gpu_info(), gpu_owner.find_free_gpus()
            columns = [gpu_owner.get_gpu_memory_usage(), gpu_owner.get_gpu_names(), gpu_owner.get_gpu_power_usage(), gpu_owner.get_gpu_utilization()]
            print(gpu_owner.get_total_num_gpus(), [list(column[0]) for column in columns], [list(gpu) for gpu in free] == [list(gpu) for gpu in info])
            print([{**a, **b, **c, **d}.items() <= gpu.items() for a, b, c, d, gpu in zip(*columns, info)], [type(gpu) for gpu in info])
            import json
            print([gpu["gpu_id"] for gpu in free], json.loads(json.dumps(free)) == info, {type(gpu["power_draw"]) for gpu in info})
            """
        )
        gpus = self.status()

        def mb(size):
            return size // 1024**2

        self.assertEqual(
            lines[:3],
            [
                f"GPU {gpu['index']}: {gpu['name']} {mb(gpu['memory']['freeBytes'])}MB / {mb(gpu['memory']['totalBytes'])}MB "
                f"{float(gpu['powerWatts'] or 0)}W / {float(gpu['powerLimitWatts'])}W {gpu['utilizationPercent']}%"
                for gpu in gpus
            ],
        )
        keys = [
            ["gpu_id", "memory_used", "memory_total", "memory_free"],
            ["gpu_id", "name"],
            ["gpu_id", "power_draw", "power_limit"],
            ["gpu_id", "utilization"],
        ]
        dicts = "[<class 'dict'>, <class 'dict'>, <class 'dict'>]"
        self.assertEqual(lines[3:], [f"3 {keys} True", f"[True, True, True] {dicts}", "[0, 1, 2] True {<class 'float'>}"])

    def test_where_there_is_no_driver(self):
        source = """
            print(gpu_owner.find_free_gpus(), gpu_owner.get_gpu_info(), gpu_owner.get_gpu_names(), gpu_owner.get_total_num_gpus())
            try:
                gpu_owner.status()
            except gpu_owner.NvidiasmiError as error:
                print(error.code)
            """
        code, out, err = self.start(source, {"GPU_OWNER_SIMULATE": "", "GPU_OWNER_NVML_LIBRARY": "/nonexistent"}).end()
        self.assertEqual((code, out), (0, "[] [] [] 0\nERR_NO_DRIVER\n"))
        self.assertEqual(err.count("/nonexistent"), 4)  # in the log of GPU Scheduler


class Notebooks(OnMachine):
    def test_a_cell_that_is_run_again_replaces_its_claim(self):
        script = self.start(
            """
            import types
            class Shell:
                execution_count, user_global_ns = 0, {"gpu_owner": gpu_owner}
                def run(self, source):
                    self.execution_count += 1
                    name = f"<ipython-input-{self.execution_count}-{len(source)}>"
                    exec(compile(source, name, "exec"), self.user_global_ns)
                    print([gpu.index for gpu in gpu_owner.status() if gpu.state == "leased"])
            shell = Shell()
            sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: shell)
            shell.run("gpus = gpu_owner.claim()")
            first = shell.user_global_ns["gpus"]
            shell.run("gpus = gpu_owner.claim()")
            print(first is shell.user_global_ns["gpus"])
            shell.run("a = gpu_owner.claim(devices=1, placeholder='none'); b = gpu_owner.claim(name='x')")
            shell.run("c = gpu_owner.claim(2, devices=[2, 3], name='x')")
            del first
            shell.user_global_ns.clear()
            """
        )
        code, out, err = script.end()
        self.assertEqual((code, out.splitlines()), (0, ["[0]", "[0]", "True", "[0, 1, 2]", "[0, 1, 2, 3]"]), err)
        self.assertIn("gpu-owner: this cell has claimed GPU 0 already, and keeps it.", err)
        self.assertRegex(err, "gpu-owner: released GPU 2, which the name 'x' had claimed at <ipython-input-3-[0-9]+>:1")


class Reentering(OnMachine):
    def test_a_claim_that_has_ended_runs_no_body(self):
        script = self.start(
            """
            gpus = gpu_owner.claim()
            with gpus:
                with gpus:
                    pass
                print(gpus.held)
            for _ in range(2):
                try:
                    with gpus:
                        print("runs")
                except gpu_owner.GPUUnavailableError as error:
                    print("Claim again" in str(error))
            gpus = gpu_owner.claim()
            print(gpus.held)
            input()
            try:
                with gpus:
                    print("runs")
            except gpu_owner.GPUUnavailableError as error:
                print("was killed" in str(error))
            """
        )
        self.assertEqual([script.line() for _ in range(4)], ["True"] * 4)
        os.kill(self.status()[0]["lease"]["pid"], signal.SIGKILL)
        self.soon_held([])
        script.go()
        self.assertEqual(script.end(), (0, "True\n", ""))


class AsOthersDid(OnMachine):
    def test_safe_gpu_for_the_life_of_the_process(self):
        script = self.start("gpu_owner.claim_gpus(3)\nprint(gpu_owner.gpu_owner.devices_taken)\ninput()")
        self.assertEqual(script.line(), "[0, 1, 2]")
        self.assertEqual(self.held(), [0, 1, 2])
        self.assertEqual([len(gpu["processes"]) for gpu in self.status()], [1, 1, 1, 0])  # visibly taken
        script.go()
        self.assertEqual(script.end(), (0, "", ""))
        self.assertEqual(self.held(), [])


class Packaging(unittest.TestCase):
    def test_syntax_of_python_3_8(self):
        for path in MODULE.glob("**/*.py"):
            ast.parse(path.read_text(), feature_version=(3, 8))

    def test_importing_the_package_imports_nothing_else(self):
        source = f"import os, sys; sys.path.insert(0, {str(MODULE.parent)!r}); had = set(sys.modules); import gpu_owner; print(set(sys.modules) - had)"
        out = subprocess.run([*PYTHON, "-c", source], stdout=subprocess.PIPE, check=True, universal_newlines=True).stdout
        self.assertEqual(out, "{'gpu_owner'}\n")

    def test_version(self):
        version = json.loads((ROOT / "package.json").read_text())["version"]
        self.assertIn(f'\n__version__ = "{version}"\n', (MODULE / "__init__.py").read_text())

    def test_pip_install(self):
        if importlib.util.find_spec("pip") is None:
            self.skipTest("needs pip")
        with tempfile.TemporaryDirectory() as directory:
            source, environment = os.path.join(directory, "python"), os.path.join(directory, "venv")
            shutil.copytree(str(MODULE.parent), source, ignore=shutil.ignore_patterns("tests", "__pycache__"))
            before = sorted(os.listdir(source))
            os.chmod(source, 0o555)  # as where npm has put it for everybody
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
            packages = next(pathlib.Path(environment).glob("lib/python*/site-packages"))
            env = {**os.environ, "PIP_INDEX_URL": "http://127.0.0.1:9/", "PYTHONDONTWRITEBYTECODE": "1"}  # nothing is to be had there
            done = subprocess.run(
                [*pip, "install", "--no-compile", "--retries=0", "--target", str(packages), source],
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                universal_newlines=True,
            )
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertEqual(sorted(os.listdir(source)), before)
            check = "import gpu_owner, importlib.metadata as metadata; print(gpu_owner.__file__, metadata.version('gpu-owner') == gpu_owner.__version__)"
            python = os.path.join(environment, "bin", "python")
            out = subprocess.run([python, "-c", check], stdout=subprocess.PIPE, check=True, universal_newlines=True).stdout
            self.assertEqual(out.split(), [str(packages / "gpu_owner" / "__init__.py"), "True"])


if __name__ == "__main__":
    unittest.main()
