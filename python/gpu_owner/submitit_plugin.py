"""
submitit's functions as background jobs: `submitit.AutoExecutor(folder="logs", cluster="gpuowner")`.

submitit imports this module by its entry points. `python -m gpu_owner.submitit_plugin` is what such a job runs. A job's ID there is
`12.3fa9c1`, or `12.3fa9c1_3` for a part of an array: the number of the job, and what makes it unique, as machines that share a folder
count for themselves. The name of the executor has no `_`, as submitit splits the names of parameters at the first one.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from submitit import helpers
from submitit.core import core, job_environment, logger, utils

from .command import command_words, read_json
from .jobs import submit, submitted
from .worker_thread import describe_end

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence, Set, Tuple, Union

_export_of_submitit = helpers.TorchDistributedEnvironment.export
_REQUEUE = 144  # the exit code of a function that continues later, as of submitit's local executor
_WAIT_S = 60  # for a file of the program that submitted, as in submitit
_GENERIC = {"name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node", "stderr_to_stdout"}
_DEFAULTS = {name: parameter.default for name, parameter in inspect.signature(submit).parameters.items()}
_OWN = {"words", "gpus", "name", "time_limit", "signal", "output", "cwd", "env", "array", "retry", "command"}


def _address(job_id: str) -> str:
    """How the command names a job: `12`, `12_3`, `gpu1:12`."""
    return re.sub(r"\.[0-9a-f]{6}(?=_\d+\Z|\Z)", "", job_id)


class _Watcher(core.InfoWatcher):  # type: ignore[misc]
    def _make_command(self) -> Optional[List[str]]:
        waiting = self._registered - self._finished
        words = [*command_words(None), "jobs", "--all", "--json"]
        if any(":" in job_id for job_id in waiting):
            # A host that doesn't answer hides no other.
            return ["sh", "-c", '"$@" && { "$@" --hosts=all || true; }', "sh", *words]
        return words if waiting else None

    def read_info(self, string: Union[bytes, str]) -> Dict[str, Dict[str, Any]]:
        text = (string if isinstance(string, str) else string.decode()).strip()
        jobs, end = json.JSONDecoder().raw_decode(text)
        for answer in json.loads(text[end:] or "{}").values():
            jobs += answer.get("jobs", [])
        found = {}
        for job in jobs:
            host = f"{job['host']}:" if job.get("host") else ""
            array = job["array"]
            found[f"{host}{job['id'] if array is None else '{id}_{index}'.format(**array)}"] = job
        infos = {}
        for job_id in self._registered:
            address = _address(job_id)
            job = found.get(address)
            array = found.get(address.rpartition("_")[0])
            if job is not None:
                state = {"waiting": "PENDING", "moving": "PENDING"}.get(job["state"], job["state"].upper())
                infos[job_id] = {**job, "State": "TIMEOUT" if (state, job["exitCode"]) == ("FAILED", 124) else state}
            elif array is not None:  # this part hasn't begun
                is_open = array["state"] in ("waiting", "moving", "running")
                infos[job_id] = {"State": "PENDING" if is_open else "CANCELLED"}
            elif ":" not in address:  # ended long ago
                infos[job_id] = {"State": "LOST"}
        return infos

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        return str(self.get_info(job_id, mode).get("State", "UNKNOWN"))


class GPUOwnerJob(core.Job):  # type: ignore[misc]
    watcher = _Watcher(delay_s=5)

    def __init__(self, folder: Union[Path, str], job_id: str, tasks: Sequence[int] = (0,)) -> None:
        super().__init__(folder, job_id, tasks)
        if ":" not in job_id:
            self._results_timeout_s = 0  # a job of this machine has written its result when it has ended

    def wait(self) -> None:
        while not self.done():
            time.sleep(0.1)

    def _get_outcome_and_result(self) -> Tuple[str, Any]:
        try:
            outcome: Tuple[str, Any] = super()._get_outcome_and_result()
            return outcome
        except utils.UncompletedJobError as error:
            info = self.get_info()
            code = info.get("exitCode")
            reason = info.get("reason") or code is not None and f"it {describe_end(code)}"
            raise utils.UncompletedJobError(f"{error}\n{reason}" if reason else str(error)) from None

    def cancel(self, check: bool = True) -> None:
        (subprocess.check_call if check else subprocess.call)([*command_words(None), "cancel", _address(self.job_id)])
        self.watcher._last_status_check = -math.inf

    def _interrupt(self, timeout: bool = False) -> None:
        """Has the function checkpoint and continue as a new request. submitit's page on checkpoints uses it for tests."""
        if ":" in self.job_id:
            raise RuntimeError(f"job {self.job_id} runs on another machine; interrupt one of this machine")
        [job] = read_json(command_words(None), ["jobs", "--json", "--", _address(self.job_id)])
        os.kill(job["pid"], GPUOwnerJobEnvironment._usr_sig())


class GPUOwnerJobEnvironment(job_environment.JobEnvironment):  # type: ignore[misc]
    _env = {
        "job_id": "SUBMITIT_GPUOWNER_JOB_ID",
        "array_job_id": "SUBMITIT_GPUOWNER_ARRAY_JOB_ID",
        "array_task_id": "GPU_OWNER_ARRAY_ID",
        "num_tasks": "SUBMITIT_GPUOWNER_NTASKS",
        "num_nodes": "SUBMITIT_GPUOWNER_NUM_NODES",
        "node": "SUBMITIT_GPUOWNER_NODE",
        "global_rank": "SUBMITIT_GPUOWNER_RANK",
        "local_rank": "SUBMITIT_GPUOWNER_RANK",
    }

    def _requeue(self, countdown: int) -> None:
        logger.get_logger().info(f"Requeued job {self.job_id} ({countdown} remaining timeouts)")
        sys.exit(_REQUEUE)

    def _handle_signals(self, paths: utils.JobPaths, submission: utils.DelayedSubmission) -> None:
        super()._handle_signals(paths, submission)

        def end(number: int, _: Any) -> None:
            """Preempted or cancelled. A preempted job restarts by itself, from its checkpoint."""
            signal.signal(number, signal.SIG_IGN)
            if self.global_rank == 0 and hasattr(submission.function, "checkpoint"):
                try:
                    job_environment._checkpoint(submission, paths.submitted_pickle, submission._timeout_countdown)
                except Exception:
                    logger.get_logger().exception("The checkpoint failed")
            sys.exit(128 + number)

        signal.signal(signal.SIGTERM, end)


class GPUOwnerExecutor(core.Executor):  # type: ignore[misc]
    """
    Runs functions as background jobs of gpu-owner, each on GPUs of its own.

    update_parameters: gpus_per_node (1 if not given), timeout_min (no limit if not given), tasks_per_node, name, stderr_to_stdout, setup,
    signal_delay_s, array_parallelism, on (other machines: 'any', or their names), and the parameters of `gpu_owner.submit`. mem_gb and
    cpus_per_task have no effect.
    """

    job_class = GPUOwnerJob

    def __init__(
        self, folder: Union[Path, str], max_num_timeout: int = 3, max_pickle_size_gb: float = 1.0, python: Optional[str] = None
    ) -> None:
        super().__init__(folder)
        self.max_num_timeout = max_num_timeout
        self.max_pickle_size_gb = max_pickle_size_gb
        self.python = shlex.quote(sys.executable) if python is None else python

    @classmethod
    def affinity(cls) -> int:
        return 0  # never chosen unless it is named

    @classmethod
    def _valid_parameters(cls) -> Set[str]:
        return {*_DEFAULTS, "on", "setup", "signal_delay_s", "array_parallelism"} - _OWN

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        unknown = sorted(set(kwargs) - _GENERIC - self._valid_parameters())
        if unknown:
            raise ValueError(f"Unavailable parameter(s): {unknown}. Valid are: {sorted(_GENERIC | self._valid_parameters())}")
        if kwargs.get("nodes", 1) != 1:
            raise ValueError("nodes: a job runs on one machine; use nodes=1")
        if kwargs.get("gpus_per_node", 1) < 1:
            raise ValueError("gpus_per_node: a job has at least one GPU; use cluster='local' for functions that need none")
        super()._internal_update_parameters(**kwargs)

    def _internal_process_submissions(self, delayed_submissions: List[utils.DelayedSubmission]) -> List[core.Job[Any]]:
        place = utils.JobPaths.get_first_id_independent_folder(self.folder)
        place.mkdir(parents=True, exist_ok=True)
        uid = uuid.uuid4().hex[:6]
        pickles = [place / f".{uid}_{number}.pkl" for number in range(len(delayed_submissions))]
        for path, each in zip(pickles, delayed_submissions):
            each.set_timeout(self.parameters.get("timeout_min", math.inf), self.max_num_timeout)
            each.dump(path)
            if path.stat().st_size * len(pickles) > self.max_pickle_size_gb * 2**30:
                path.unlink()
                raise RuntimeError(f"the functions and arguments need more than {self.max_pickle_size_gb} GB (max_pickle_size_gb)")
        function = delayed_submissions[0].function
        number = self._submit(uid, len(pickles), getattr(function, "__qualname__", type(function).__qualname__))
        ids = [f"{number}.{uid}"] if len(pickles) == 1 else [f"{number}.{uid}_{part}" for part in range(len(pickles))]
        jobs = [self.job_class(self.folder, job_id, range(self.parameters.get("tasks_per_node", 1))) for job_id in ids]
        for job, path in zip(jobs, pickles):
            job.paths.move_temporary_file(path, "submitted_pickle")
        with utils.temporary_save_path(place / f".{uid}.id") as path:
            path.write_text(number)
        return jobs

    def _submit(self, uid: str, count: int, function: str) -> str:
        given = self.parameters
        tasks, merge = given.get("tasks_per_node", 1), given.get("stderr_to_stdout", False)
        words = [*shlex.split(self.python), "-u", "-m", __name__, str(self.folder), uid, str(tasks), str(int(merge))]
        if given.get("setup"):
            words = ["sh", "-c", " && ".join([*given["setup"], f"exec {shlex.join(words)}"])]
        options = {**_DEFAULTS, "note": re.sub(r"[^\x21-\x7e]+", " ", function)[:100]}
        options.update({name: value for name, value in given.items() if name in _DEFAULTS})
        for name in ("after", "after_ok"):
            earlier = options[name] if isinstance(options[name], (list, tuple)) else [options[name]]
            options[name] = [_address(str(getattr(job, "job_id", job))) for job in earlier if job is not None]
        # submitit counts how often a function ends with this code, and continues later.
        options.update(words=words, gpus=given.get("gpus_per_node", 1), retry=f"9999:{_REQUEUE}")
        if given.get("name"):
            options["name"] = re.sub(r"[\s:,/]+", "-", given["name"])
        if given.get("timeout_min"):
            limit = 60 * given["timeout_min"]
            options["time_limit"] = limit
            options["signal"] = f"{GPUOwnerJobEnvironment.USR_SIG}@{round(1000 * min(given.get('signal_delay_s', 90), limit / 2))}ms"
        if count > 1:
            most = given.get("array_parallelism")
            options["array"] = f"0-{count - 1}" + (f"%{most}" if most else "")
        return submitted(options, given.get("on"))[1]


def _export(self: Any, set_cuda_visible_devices: bool = True, overwrite: bool = False) -> Any:
    """TorchDistributedEnvironment.export, with a GPU of the job for each rank, where submitit's takes GPU 0 of the machine and so on."""
    _export_of_submitit(self, False, overwrite)
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if set_cuda_visible_devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[self.local_rank % len(gpus)]
    return self


def _run(folder: str, uid: str, tasks: str, merge: str) -> int:
    """Runs the function of a job, or one process for each of its tasks."""
    rank = os.environ.get("SUBMITIT_GPUOWNER_RANK")
    if rank is None:
        path = utils.JobPaths.get_first_id_independent_folder(folder) / f".{uid}.id"
        until = time.monotonic() + _WAIT_S
        while not path.exists():
            if time.monotonic() > until:
                raise RuntimeError(f"{path} is missing: the program that submitted this job ended meanwhile")
            time.sleep(0.05)
        job_id = f"{path.read_text()}.{uid}"
        own = {"EXECUTOR": "gpuowner", "GPUOWNER_JOB_ID": job_id, "GPUOWNER_NTASKS": tasks}
        own["GPUOWNER_ARRAY_JOB_ID"] = job_id if "GPU_OWNER_ARRAY_ID" in os.environ else ""
        os.environ.update({f"SUBMITIT_{name}": value for name, value in own.items()})
        os.environ["SUBMITIT_FOLDER"] = folder
        if int(tasks) > 1:
            return _run_tasks(int(tasks))
    paths = GPUOwnerJobEnvironment().paths
    paths.folder.mkdir(parents=True, exist_ok=True)
    for path in (paths.submitted_pickle, paths.result_pickle):
        path.with_suffix(".pkl.save_tmp").unlink(missing_ok=True)  # of a start that was killed
    if paths.result_pickle.exists():  # preempted after its end
        return 0 if utils.pickle_load(paths.result_pickle)[0] == "success" else 1
    print(f"output: {paths.stdout}", flush=True)
    for standard, path in ((1, paths.stdout), (2, paths.stdout if merge == "1" else paths.stderr)):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(descriptor, standard)
        os.close(descriptor)
    from submitit.core.submission import process_job

    helpers.TorchDistributedEnvironment.export = _export
    process_job(folder)
    return 0


def _run_tasks(count: int) -> int:
    tasks: List[subprocess.Popen[bytes]] = []
    signal.signal(GPUOwnerJobEnvironment._usr_sig(), lambda number, _: [task.send_signal(number) for task in tasks])  # type: ignore[func-returns-value]
    signal.signal(signal.SIGTERM, lambda *_: None)  # the tasks get it, too
    for rank in range(count):
        words = [sys.executable, "-u", "-m", "gpu_owner.submitit_plugin", *sys.argv[1:]]
        tasks.append(subprocess.Popen(words, env={**os.environ, "SUBMITIT_GPUOWNER_RANK": str(rank)}))
    codes = []
    for task in tasks:
        codes.append(task.wait())
        if codes[-1] in (_REQUEUE, 128 + signal.SIGTERM):  # the first one decides when all of them restart
            for other in tasks:
                other.terminate()
    return max(codes, key=lambda code: (code == _REQUEUE, code != 0))


if __name__ == "__main__":
    sys.exit(_run(*sys.argv[1:]))
