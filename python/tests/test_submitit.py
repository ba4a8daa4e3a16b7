"""The executor for submitit: with the real submitit and Hydra, as whole processes on simulated machines."""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
import zipfile

from test_executor import SITE
from test_gpu_owner import COMMAND, IS_SOAK, ROOT, OnMachine


def lacks(*modules):
    return next((f"needs {name}" for name in modules if importlib.util.find_spec(name) is None), "")


# Two calls on one GPU at a time, or more GPUs than one, are an error.
FUNCTIONS = """
import contextlib, fcntl, os, sys, time
import submitit
from submitit import helpers

@contextlib.contextmanager
def witness():
    gpu = os.environ["CUDA_VISIBLE_DEVICES"]
    with open(f"witness.{gpu}", "a") as file, open("calls", "a", 1) as log:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        log.write("+")
        yield gpu
        log.write("-")

def double(x):
    with witness() as gpu:
        print("printed", x, gpu.count(","), flush=True)
        print("warned", file=sys.stderr)
        time.sleep(0.2)
    return 2 * x

class Steps(helpers.Checkpointable):
    def __init__(self, until):
        self.starts, self.until = 0, until

    def __call__(self):
        self.starts += 1
        with witness():
            open(f"start{self.starts}", "w").close()
            while self.starts < self.until:
                time.sleep(0.05)
        return self.starts

def executor(**parameters):
    made = submitit.AutoExecutor(folder="logs/%j", cluster="gpuowner")
    made.update_parameters(**{"gpus_per_node": 1, **parameters})
    return made
"""


@unittest.skipIf(lacks("submitit"), lacks("submitit"))
class Submitit(OnMachine):
    machine = "2"
    site: "tempfile.TemporaryDirectory[str]"

    @classmethod
    def setUpClass(cls):
        cls.site = tempfile.TemporaryDirectory(prefix="gpu-owner-site-")
        words = [sys.executable, str(ROOT / "python/build_wheel.py"), cls.site.name]
        wheel = os.path.join(cls.site.name, subprocess.check_output(words, universal_newlines=True).strip())
        assert os.path.getsize(wheel) < 200_000
        zipfile.ZipFile(wheel).extractall(cls.site.name)

    @classmethod
    def tearDownClass(cls):
        cls.site.cleanup()

    def setUp(self):
        super().setUp()
        self.env.update(
            PYTHONPATH=self.site.name,
            GPU_OWNER_COMMAND=str(COMMAND),
            XDG_STATE_HOME=os.path.join(self.directory, "state"),
        )

    def tearDown(self):
        subprocess.run([str(COMMAND), "cancel", "--all", "--grace", "0"], env=self.env, stderr=subprocess.DEVNULL)
        super().tearDown()

    def output_of(self, *words):
        code, out, err = self.start_words([*SITE, *words]).end()
        self.assertEqual(code, 0, err + out)
        self.soon_held([])
        return out.splitlines()

    def run_functions(self, source):
        path = os.path.join(self.directory, "program.py")
        pathlib.Path(path).write_text(FUNCTIONS + textwrap.dedent(source))
        return self.output_of(path)

    def test_functions_run_as_jobs(self):
        lines = self.run_functions(
            """
            one = executor(timeout_min=5, name="my train", gpuowner_memory=None).submit(double, 4)
            print(one.result(), one.exception(), "printed 4 0" in one.stdout(), one.stderr().strip(), one.done())

            array = executor(gpuowner_array_parallelism=1).map_array(double, range(3))
            print([job.result() for job in helpers.as_completed(array, poll_frequency=0.5)], open("calls").read())

            def fail():
                raise ValueError("too bad")
            bad = executor(gpuowner_after_ok=[one]).submit(fail)
            print("too bad" in str(bad.exception()), type(bad.exception()).__name__)

            long = executor().submit(double, 1) and executor().submit(time.sleep, 600)
            while long.state != "RUNNING":
                time.sleep(0.2)
                long.get_info(mode="force")
            long.cancel()
            print(long.state, type(long.exception()).__name__, str(long.exception()).splitlines()[-1])

            ranks = executor(tasks_per_node=2, gpus_per_node=2, stderr_to_stdout=True)
            def rank():
                print("to stdout", file=sys.stderr)
                return helpers.TorchDistributedEnvironment().export().local_rank, os.environ["CUDA_VISIBLE_DEVICES"][-1]
            job = ranks.submit(rank)
            print(job.results(), job.stdout().count("to stdout"))
            for wrong in ({"gpuowner_nonsense": 1}, {"gpus_per_node": 0}, {"nodes": 2}):
                try:
                    executor().update_parameters(**wrong)
                except (NameError, ValueError) as error:
                    print(type(error).__name__)
            """
        )
        self.assertEqual(
            lines,
            [
                "8 None True warned True",
                "[0, 2, 4] +-+-+-+-",
                "True FailedJobError",
                "CANCELLED UncompletedJobError it was killed by signal 15 (SIGTERM)",
                "[(0, '0'), (1, '1')] 2",
                "NameError",
                "ValueError",
                "ValueError",
            ],
        )

    def test_functions_continue_from_their_checkpoint(self):
        lines = self.run_functions(
            f"""
            import subprocess
            def soon(path):
                while not os.path.exists(path):
                    time.sleep(0.02)
            preempted = executor(gpuowner_preemptible=True).submit(Steps(2))
            soon("start1")
            subprocess.run([{str(COMMAND)!r}, "run", "--gpus=2", "--", "true"], check=True)
            print(preempted.result(), preempted.get_info()["preempted"])

            os.remove("start1")
            timed = executor(timeout_min=1, signal_delay_s=30).submit(Steps(2))
            soon("start1")
            os.remove("start1")
            interrupted = executor(timeout_min=60).submit(Steps(2))
            soon("start1")
            interrupted._interrupt()
            print(interrupted.result(), interrupted.get_info()["retried"])

            late = submitit.AutoExecutor(folder="logs", cluster="gpuowner", gpuowner_max_num_timeout=0)
            late.update_parameters(timeout_min=1)
            os.remove("start1")
            late = late.submit(Steps(9))
            soon("start1")
            late._interrupt()
            print("timed-out too many times" in str(late.exception()))
            print(timed.result(), timed.get_info()["retried"])
            """
        )
        self.assertEqual(lines, ["2 1", "2 1", "True", "2 1"])

    @unittest.skipUnless(IS_SOAK and not lacks("pytest"), "in npm run test:soak, with pytest")
    def test_the_tests_of_submitit_for_its_local_executor(self):
        judge = "import submitit.local.local as local\nfrom gpu_owner.submitit_plugin import GPUOwnerExecutor\n"
        judge += "class LocalExecutor(GPUOwnerExecutor): pass\nlocal.LocalExecutor = LocalExecutor\n"
        pathlib.Path(self.directory, "judge.py").write_text(judge)
        # The others are about the processes of the local executor, take a minute, or end a job after two seconds: before Python has started,
        # if the machine is busy (custom_checkpoint, requeuing).
        names = "pickle_output or first_task_error or load_submission"
        lines = self.output_of(
            "-m", "pytest", "-q", "-p", "judge", "-p", "no:cacheprovider", "--pyargs", "submitit.local.test_local", "-k", names
        )
        self.assertRegex(lines[-1], "^3 passed")

    @unittest.skipUnless(IS_SOAK and not lacks("hydra_plugins"), "in npm run test:soak, with hydra-submitit-launcher")
    def test_hydra_submits_its_jobs(self):
        shutil.copytree(str(ROOT / "examples/recipes/hydra_plugins"), os.path.join(self.directory, "hydra_plugins"))
        program = "import os, hydra\n@hydra.main(version_base=None, config_path=None)\n"
        program += "def main(config): open(f'lr-{config.lr}', 'w').write(os.environ['CUDA_VISIBLE_DEVICES'])\nmain()\n"
        pathlib.Path(self.directory, "program.py").write_text(program)
        options = ["hydra/launcher=submitit_gpuowner", "+hydra.launcher.array_parallelism=2", "+lr=0.1,0.2"]
        self.output_of("program.py", "-m", *options)
        uuids = [path.read_text() for path in pathlib.Path(self.directory).glob("lr-*")]
        self.assertEqual([len(uuid) for uuid in uuids], [40, 40])


if __name__ == "__main__":
    unittest.main()
