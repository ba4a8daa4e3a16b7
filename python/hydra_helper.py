"""
Reads a command line of Hydra with the user's own Hydra. gpu-owner starts this program once per sweep: a line of JSON on stdin for a
command line, and one on stdout with the answer.
"""

import ast
import itertools
import json
import os
import re
import subprocess
import sys
from typing import Any, Dict, List, Optional

ASK_TIMEOUT_S = 120
MARK = "gpu-owner asks:"
MAX_VALUES = 1_000_000


class Refusal(Exception):
    pass


class Groups:
    """Stands in for Hydra's loader of configurations: it knows the options of each group from the program's help."""

    def __init__(self, options: Dict[str, List[str]]) -> None:
        self.options = options

    def get_group_options(self, group: str, results_filter: Any = None) -> List[str]:
        if group not in self.options:
            raise Refusal(f"glob: the program has no group '{group}'")
        return self.options[group]


def parse(words: List[str]) -> List[Any]:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    overrides = {}
    for word in words:
        try:
            override = parser.parse_override(word)
        except HydraException as error:
            lines = [line.strip() for line in str(error).splitlines() if not line.startswith("See ")]
            raise Refusal(f"'{word}': {' '.join(lines)}") from None
        overrides[override.get_key_element()] = override  # the last one counts, as for Hydra's sweeper
    return list(overrides.values())


def is_glob(override: Any) -> bool:
    return override.value_type is not None and override.value_type.name == "GLOB_CHOICE_SWEEP"


def texts_of(override: Any) -> List[str]:
    """The values as Hydra's sweeper writes them."""
    from hydra.core.override_parser.types import Sweep

    value = override._value
    if not override.is_sweep_override():
        return [override.get_value_element_as_str()]
    if getattr(value, "step", None) == 0:
        raise Refusal("range: its step is 0")
    if any(isinstance(each, Sweep) for each in getattr(value, "list", [])):
        raise Refusal("a sweep in a sweep; write one list")
    value.shuffle = False  # a stable order lets the sweep continue
    texts = list(itertools.islice(override.sweep_string_iterator(), MAX_VALUES + 1))
    if len(texts) > MAX_VALUES:
        raise Refusal(f"it has more than {MAX_VALUES:,} values")
    if not texts and is_glob(override):
        group = override.key_or_group
        known = ", ".join(override.config_loader.get_group_options(group))
        raise Refusal(f"glob: none of {known} in '{group}' matches")
    if not texts:
        raise Refusal("there are no such values; the sweep would be empty")
    return texts


def range_of(override: Any, count: int) -> Dict[str, Any]:
    value = override._value
    first = min(value.start, value.start + (count - 1) * value.step)
    is_float = isinstance(value.start + value.stop + value.step, float)
    return {"range": {"first": first, "step": abs(value.step), "count": count}, "isFloat": is_float}


def describe(override: Any) -> Dict[str, Any]:
    found: Dict[str, Any] = {"key": override.get_key_element(), "name": override.key_or_group}
    found["isSweep"] = override.is_sweep_override()
    if override.value_type is None:
        return {**found, "texts": None}
    if override.is_interval_sweep():
        start, end, is_log = override._value.start, override._value.end, "log" in override._value.tags
        if not start < end:
            raise Refusal(f"interval: {start} must be smaller than {end}")
        return {**found, "interval": {"min": start, "max": end, "log": is_log}, "isFloat": isinstance(start, float)}
    texts = texts_of(override)
    return {**found, **(range_of(override, len(texts)) if override.is_range_sweep() else {"texts": texts})}


def is_sweepers(override: Any) -> bool:
    return re.match(r"hydra(/sweeper|\.sweeper\.|\.mode$)", override.key_or_group) is not None


def refuse_others(sweeper: Dict[str, Any]) -> None:
    target = sweeper["_target_"].rsplit(".", 1)[-1]
    if target != "BasicSweeper":
        raise Refusal(f"hydra/sweeper: {target} can't run here; add hydra/sweeper=basic, and for a search --method tpe --metric NAME")


def mentions_hydra(words: List[str]) -> bool:
    script = next((word for word in words if word.endswith(".py")), None)
    try:
        return script is not None and re.search(r"\bhydra\b", open(script, errors="replace").read()) is not None
    except OSError:
        return False


def ask(program: List[str], overrides: List[Any]) -> Optional[str]:
    """Starts the program for its help, in words that make Hydra tell its sweeper, and which options groups have."""
    fixed = []
    for override in overrides:
        if override.value_type is None:
            fixed.append(override.get_key_element())
        elif not is_glob(override) and not override.is_interval_sweep():
            fixed.append(f"{override.get_key_element()}={texts_of(override)[0]}")
    sweeper = "${oc.select:hydra.mode,null} ${oc.select:hydra.sweeper,null}"
    template = f"hydra.help.template='{MARK}{sweeper}\n$APP_CONFIG_GROUPS'"
    words = [*program, "--help", *fixed, template]
    why = ""
    has_failed = True
    try:
        answer = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASK_TIMEOUT_S,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )
        if MARK in answer.stdout:
            return answer.stdout.split(MARK, 1)[1]
        has_failed = answer.returncode != 0
        lines = answer.stderr.strip().splitlines() or [""]
        why = next((line for line in reversed(lines) if "Error " in line or "Error:" in line), lines[-1])
        if "in substitute" in answer.stderr:
            why += " (an interpolation in hydra.sweeper; write the values themselves)"
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    text = f"{' '.join(program)} --help doesn't tell which options there are{': ' if why else ''}{why}"
    if any(is_glob(override) or is_sweepers(override) for override in overrides) or "an interpolation" in why:
        raise Refusal(text)
    if has_failed:
        raise Refusal(f"{text}. If it starts only on a GPU, write the values with --grid in place of --hydra")
    print(f"{text}; its hydra.sweeper is not used", file=sys.stderr)
    return None


def read(program: List[str], words: List[str]) -> Dict[str, Any]:
    overrides = parse(words)
    sweeper: Dict[str, Any] = {}
    mode = "null"
    # Another program isn't started: it would train.
    if mentions_hydra(program) or any(is_glob(override) or is_sweepers(override) for override in overrides):
        answer = ask(program, overrides)
        if answer is not None:
            configured, groups = answer.split("\n", 1)
            mode, _, text = configured.partition(" ")
            sweeper = ast.literal_eval(re.sub(r"<\w+\.(\w+): \d+>", r"'\1'", text))
            refuse_others(sweeper)
            overrides = parse([f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()] + words)
            lines = re.findall(r"^([\w./-]+): (.*)$", groups, re.MULTILINE)
            loader = Groups({group: names.split(", ") for group, names in lines})
            for override in overrides:
                override.config_loader = loader
    found = []
    for override in overrides:
        try:
            found.append(describe(override))
        except Refusal as refusal:
            raise Refusal(f"'{override.input_line}': {refusal}") from None
    return {"overrides": found, "isMultirun": mode.endswith("MULTIRUN")}


def answer_to(line: Dict[str, Any]) -> Dict[str, Any]:
    try:
        return read(line["program"], line["overrides"])
    except ImportError as error:
        return {"missing": error.name or str(error)}
    except Refusal as refusal:
        return {"error": str(refusal)}


for each in sys.stdin:
    print(json.dumps(answer_to(json.loads(each))))
