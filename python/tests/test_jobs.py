"""Jobs in the background, submitted from Python, with whole processes on simulated machines."""

import os
import subprocess
import textwrap
import unittest

from test_gpu_owner import COMMAND, OnMachine


class Jobs(OnMachine):
    machine = "2"

    def setUp(self):
        super().setUp()
        self.env["XDG_STATE_HOME"] = os.path.join(self.directory, "state")

    def run_script(self, source, env=None):
        return super().run_script("from pathlib import Path\nread = lambda path: Path(path).read_text()\n" + textwrap.dedent(source), env)

    def tearDown(self):
        subprocess.run([str(COMMAND), "cancel", "--all", "--grace", "0"], env=self.env, stderr=subprocess.DEVNULL)
        super().tearDown()

    def test_a_job_by_its_name(self):
        lines = self.run_script(
            """
            job = gpu_owner.submit(["echo", "hello"], name="train")
            job.wait()
            print(gpu_owner.Job("train") == job, gpu_owner.Job(str(job.id)) == job, gpu_owner.Job("train").log().strip())
            for wrong in ("x", "a:1", "1_2", "", 1.5, None):
                try:
                    gpu_owner.Job(wrong)
                except gpu_owner.UsageError as error:
                    print(error)
            """
        )
        self.assertEqual(lines[0], "True True hello")
        self.assertEqual(lines[1], "you have no job x on this machine; `gpu-owner jobs --all` lists those that you have")
        self.assertEqual(len(lines), 7)
        for line in lines[2:]:
            self.assertIn("use Job(12) or Job('train')", line)

    def test_a_job_from_its_submission_to_its_end(self):
        lines = self.run_script(
            """
            job = gpu_owner.submit(["sh", "-c", "echo $CUDA_VISIBLE_DEVICES | tr , '\\\\n'; echo later; exit 3"], gpus=2, name="train", note="a try")
            print(job, job.id, job == gpu_owner.Job(1), job != gpu_owner.Job(2), len({job, gpu_owner.Job(1)}))
            print(job.wait(), job.state, [job.info()[key] for key in ("exitCode", "name", "note", "count")])
            print(len(job.log().splitlines()), repr(job.log(lines=1)), repr(job.log(0)))
            print(job.wait(timeout=5), job.wait("5s"), job.cancel())
            """
        )
        self.assertEqual(lines, ["Job(1) 1 True True 1", "3 failed [3, 'train', 'a try', 2]", "3 'later\\n' ''", "3 3 None"])

    def test_one_may_get_more_time(self):
        lines = self.run_script(
            """
            import time
            from datetime import datetime
            job = gpu_owner.submit(["sleep", "1000"], time_limit="1h")
            while job.state != "running":
                time.sleep(0.05)
            job.extend("1h")
            job.extend(1800)
            started, until = (datetime.fromisoformat(job.info()[key].replace("Z", "+00:00")) for key in ("started", "until"))
            print((until - started).total_seconds())
            job.cancel(grace=1)
            try:
                job.extend("1h")
            except gpu_owner.GPUOwnerError as error:
                print(error)
            """
        )
        self.assertEqual([lines[0], "has ended" in lines[1]], ["9000.0", True])

    def test_a_wait_can_end_before_the_job(self):
        lines = self.run_script(
            """
            job = gpu_owner.submit(["sleep", "600"])
            for timeout in (0.3, "200ms", 0):
                try:
                    job.wait(timeout)
                except TimeoutError as error:
                    print(type(error).__name__, error.code, error.exit_code)
            job.cancel(grace=5)
            print(job.state, job.wait())
            """
        )
        self.assertEqual(lines, ["WaitTimeoutError ERR_TIMEOUT 75"] * 3 + ["cancelled 143"])

    def test_order(self):
        lines = self.run_script(
            """
            first = gpu_owner.submit(["sh", "-c", "while [ ! -e go ]; do sleep 0.02; done; echo 1 >> order; exit 1"], name="first")
            second = gpu_owner.submit(["sh", "-c", "echo 2 >> order"], after=first)
            third = gpu_owner.submit(["sh", "-c", "echo 3 >> order"], after=["first", second.id], after_ok=[second])
            never = gpu_owner.submit(["true"], after_ok=first)
            Path("go").touch()
            print([job.wait() for job in (first, second, third, never)], never.state, never.info()["reason"])
            print(read("order").split(), third.info()["after"])
            """
        )
        reason = "it was to follow job 1, which failed with exit code 1"
        self.assertEqual(lines, [f"[1, 0, 0, 143] cancelled {reason}", "['1', '2', '3'] [1, 2]"])

    def test_where_it_runs(self):
        os.mkdir(os.path.join(self.directory, "elsewhere"))
        lines = self.run_script(
            """
            here = os.getcwd()
            job = gpu_owner.submit([Path("/bin/sh"), "-c", "pwd; echo $0 $GPU_OWNER_ERRORS.", "a b"], cwd=Path("elsewhere"), output="out-%j")
            print(job.wait(), read("elsewhere/out-1").replace(here, "HERE").splitlines(), job.log() == read("elsewhere/out-1"))
            job = gpu_owner.submit(["sh", "-c", "echo $ONE.$HOME."], env={"PATH": os.environ["PATH"], "ONE": "1", **{
                name: value for name, value in os.environ.items() if name.startswith(("GPU_OWNER_", "XDG_"))}})
            print(job.wait(), job.log())
            """
        )
        self.assertEqual(lines, ["0 ['HERE/elsewhere', 'a b .'] True", "0 1..", ""])

    def test_mistakes(self):
        lines = self.run_script(
            """
            for words, mistake, expected in (
                ("python train.py", {}, "words"), ([], {}, "words"), (["sleep", 5], {}, "words"), (["a\\0b"], {}, "null byte"), (["nonexistent-program"], {}, "not found"),
                (["true"], dict(gpus=9), "GPUs asked"), (["true"], dict(gpus="2"), "gpus"), (["true"], dict(gpus=0), "gpus"),
                (["true"], dict(name="a b"), "name"), (["true"], dict(note="a\\nb"), "note"), (["true"], dict(after=7), "no job 7"),
                (["true"], dict(after=1.5), "after"), (["true"], dict(after_ok="nobody"), "no job"), (["true"], dict(time_limit="soon"), "time_limit"),
                (["true"], dict(time_limit=-1), "time_limit"), (["true"], dict(signal="USR1@5m"), "signal"), (["true"], dict(cwd="nowhere"), "cwd"),
                (["true"], dict(output="nowhere/out"), "output"), (["true"], dict(notify=True), "notify"), (["true"], dict(max_power="much"), "max_power"),
            ):
                try:
                    gpu_owner.submit(words, **mistake)
                except ValueError as error:
                    if error.code != "ERR_INVALID_ARGUMENT" or expected not in str(error) or "--" in str(error).replace("jobs --all", ""):
                        print(words, mistake, error)
                else:
                    print("no error:", words, mistake)
            for call in (lambda job: job.wait(), lambda job: job.log(), lambda job: job.info(), lambda job: job.cancel(), lambda job: job.wait(-1)):
                try:
                    call(gpu_owner.Job(7))
                except gpu_owner.UsageError as error:
                    print(error)
            """
        )
        unknown = "you have no job 7 on this machine"
        self.assertEqual([line.partition(";")[0] for line in lines], [unknown] * 4 + ["timeout: -1 is not a duration"])


if __name__ == "__main__":
    unittest.main()
