"""
Chooses trials with a sampler of Optuna, for sweeps that search. gpu-owner starts this program, asks and tells: a line of JSON each way.
The program keeps nothing. After a restart, it is told all trials again.
"""

import importlib.util
import json
import os
import sys
import warnings
from typing import Any, Dict, Optional

SAMPLERS = {"tpe": "TPESampler", "gp": "GPSampler", "cmaes": "CmaEsSampler"}
# What a sampler imports only after some trials.
NEEDED = {"tpe": [], "gp": ["scipy", "torch"], "cmaes": ["cmaes"]}


class Search:
    def __init__(self, begin: Dict[str, Any]) -> None:
        import optuna

        for name in NEEDED[begin["method"]]:
            if importlib.util.find_spec(name) is None:
                raise ImportError(f"No module named '{name}'", name=name)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.optuna = optuna
        self.space = begin["space"]
        self.method = begin["method"]
        self.study = optuna.create_study(direction=begin["goal"], sampler=self.sampler(0))
        self.trials: Dict[int, Any] = {}

    def sampler(self, seed: int) -> Any:
        # A new one for each trial, so that a trial depends on its seed and on what is known of the others, and on nothing else.
        options: Dict[str, Any] = {"seed": seed}
        if self.method == "tpe":
            options["constant_liar"] = True
        return getattr(self.optuna.samplers, SAMPLERS[self.method])(**options)

    def ask(self, seed: int, known: Optional[Dict[str, Any]]) -> Dict[str, Any]:
        """Chooses a trial. `known`: it has been chosen before, with these parameters."""
        self.study.sampler = self.sampler(seed)
        if known is not None:
            self.study.enqueue_trial(known)
        trial = self.study.ask()
        if known is not None:
            trial.relative_params  # noqa: B018 (CMA-ES notes there to which generation the trial belongs)
        parameters = {each["name"]: self.suggest(trial, each) for each in self.space}
        self.trials[trial.number] = trial
        return {"number": trial.number, "parameters": parameters}

    @staticmethod
    def suggest(trial: Any, each: Dict[str, Any]) -> Any:
        if each["kind"] == "choice":
            return trial.suggest_categorical(each["name"], list(range(each["count"])))
        suggest = trial.suggest_int if each["kind"] == "int" else trial.suggest_float
        return suggest(each["name"], each["low"], each["high"], log=each["log"])

    def tell(self, number: int, value: Optional[float], step: Optional[int]) -> Dict[str, Any]:
        """Notes how a trial has ended. No value: it has failed. `step`: it was stopped there."""
        states = self.optuna.trial.TrialState
        trial = self.trials.pop(number)
        if value is not None and step is not None:
            trial.report(value, step)
            self.study.tell(trial, state=states.PRUNED)
        elif value is not None:
            self.study.tell(trial, value)
        else:
            self.study.tell(trial, state=states.FAIL)
        return {}


def main() -> None:
    # Output of libraries must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    search: Optional[Search] = None
    for line in sys.stdin:
        message = json.loads(line)
        try:
            if search is None:
                search = Search(message)
                answer: Dict[str, Any] = {}
            elif "seed" in message:
                answer = search.ask(message["seed"], message["known"])
            else:
                answer = search.tell(message["number"], message["value"], message["step"])
        except ImportError as error:
            answer = {"missing": getattr(error, "name", None), "error": str(error)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(f"{json.dumps(answer)}\n")
        answers.flush()


if __name__ == "__main__":
    main()
