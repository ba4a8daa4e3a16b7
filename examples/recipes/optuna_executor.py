import gpu_owner
import optuna
from model import train
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend


def main() -> None:
    storage = JournalStorage(JournalFileBackend("study.log"))
    study = optuna.create_study(study_name="lr", storage=storage, load_if_exists=True)
    with gpu_owner.Executor(gpus=1, max_workers=4) as pool:

        def objective(trial: optuna.Trial) -> float:
            return pool.submit(train, lr=trial.suggest_float("lr", 1e-4, 1e-1, log=True)).result()

        study.optimize(objective, n_trials=20, n_jobs=4)
    print(study.best_params)


if __name__ == "__main__":
    main()
