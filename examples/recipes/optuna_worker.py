import optuna
from model import train
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import MaxTrialsCallback
from optuna.trial import TrialState

TRIALS = 20  # for all workers together


def objective(trial: optuna.Trial) -> float:
    return train(lr=trial.suggest_float("lr", 1e-4, 1e-1, log=True))


study = optuna.create_study(
    study_name="lr",
    storage=JournalStorage(JournalFileBackend("study.log")),  # shared by all workers
    load_if_exists=True,
)
if len(study.get_trials(states=[TrialState.COMPLETE])) < TRIALS:
    study.optimize(objective, callbacks=[MaxTrialsCallback(TRIALS)])
