import csv
import sys

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution

table, metric, *parameters = sys.argv[1:]


def value(text):
    try:
        return float(text)
    except ValueError:
        return text


def space(values):
    if all(isinstance(each, float) for each in values):
        return FloatDistribution(min(values), max(values))
    return CategoricalDistribution(sorted(set(values)))


with open(table) as file:
    rows = [{name: value(text) for name, text in row.items()} for row in csv.DictReader(file)]
spaces = {name: space([row[name] for row in rows]) for name in parameters}
study = optuna.create_study(direction="minimize")
for row in rows:
    params = {name: row[name] for name in parameters}
    study.add_trial(optuna.create_trial(params=params, distributions=spaces, value=row[metric]))

evaluator = optuna.importance.PedAnovaImportanceEvaluator()  # the default one needs scikit-learn
print(optuna.importance.get_param_importances(study, evaluator=evaluator))
