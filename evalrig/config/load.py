"""From a run file to a checked `RunConfig`. The only module that knows Hydra and YAML."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, cast

from evalrig.config import schema
from evalrig.config.schema import RunConfig
from evalrig.content import content_dir
from evalrig.errors import UsageError

T = TypeVar("T")
LONGEST_NAME = 200
DERIVING = {"task_margin", "min_ratio", "attainment"}
"""Options of gates of which a margin written as 0 is derived."""
"""Bytes: file systems take 255, and the run folder adds endings."""


def load_run(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Compose a run file and check it.

    Groups (`engine/`, `suite/`, `gate/`) are searched beside the file first, then among the shipped ones.

    Raises:
        UsageError: one line that names the file, the key path and the remedy.
    """
    import yaml
    from hydra import compose, initialize_config_dir  # 0.4 s: not at import
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    _look(path, overrides)
    ConfigStore.instance().store(name="schema", node=RunConfig)
    shipped = f"hydra.searchpath=['file://{content_dir('conf')}']"
    try:
        with initialize_config_dir(str(path.parent.resolve()), version_base="1.3"):
            tree = compose(path.stem, [shipped, *overrides])
        if OmegaConf.get_type(tree) is not RunConfig or _late_schema(yaml.safe_load(path.read_text("utf-8"))):
            raise UsageError(f"{path}: unchecked keys; put `- schema` first under `defaults:`")
        if missing := sorted(OmegaConf.missing_keys(tree)):
            raise UsageError(f"{path}: no value for {', '.join(f'`{key}`' for key in missing)}; give it in the file")
        if "${oc.env" in OmegaConf.to_yaml(tree):
            raise UsageError(
                f"{path}: `${{oc.env:...}}` would be stored with the run; write the value, or leave it to the engine"
            )
        run = cast(RunConfig, OmegaConf.to_object(tree))
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        raise UsageError(f"{path}: {_explain(error)}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text ({error.reason}); save it as UTF-8") from error
    _check(run, path)
    return run


def options(raw: Mapping[str, Any], owner: type[T], where: str) -> T:
    """A plugin's options, checked by the plugin's own dataclass `owner`; `where` leads the error."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        tree = OmegaConf.merge(OmegaConf.structured(owner), dict(raw))
        if missing := sorted(OmegaConf.missing_keys(tree)):
            raise UsageError(f"{where}.{missing[0]}: no value; give it in the run file")
        return cast(T, OmegaConf.to_object(tree))
    except OmegaConfBaseException as error:
        text = _explain(error, owner)
        raise UsageError(f"{where}.{text}" if getattr(error, "full_key", None) else f"{where}: {text}") from error


def tree(config: RunConfig) -> dict[str, Any]:
    """The config as plain dicts, ready for JSON."""
    return asdict(config)


def dump(config: RunConfig) -> str:
    """The resolved run file: loads again to an equal config, and can be run as it is."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Quotes whatever could be read as a number: `1e5` is text to PyYAML and a number to OmegaConf."""

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, "'" if re.match(r"[-+.\d]", value) else None)

    Dumper.add_representer(str, text)
    body = yaml.dump(_literal(tree(config)), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)
    return f"# Resolved by evalrig; every key as it was used.\ndefaults: [schema, _self_]\n{body}"


def parse(text: str) -> Any:
    """Safe-loaded YAML; None for an empty text."""
    import yaml

    return yaml.safe_load(text)


def _late_schema(tree: Any) -> bool:
    """Composed after anything else, the schema's defaults would silently replace what was written there."""
    parts = tree.get("defaults") if isinstance(tree, dict) else None
    return isinstance(parts, list) and "schema" in parts[1:]


def _literal(value: Any) -> Any:
    """Text that holds `${` was no interpolation, or was resolved: it must not be taken for one when loaded again."""
    if isinstance(value, dict):
        return {key: _literal(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_literal(part) for part in value]
    return value.replace("${", "\\${") if isinstance(value, str) else value


def _look(path: Path, overrides: Sequence[str]) -> None:
    if not path.is_file():
        near = (
            get_close_matches(path.name, [p.name for p in path.parent.glob("*.yaml")], 1)
            if path.parent.is_dir()
            else []
        )
        raise UsageError(f"{path}: no such run file" + (f"; did you mean `{path.with_name(near[0])}`?" if near else ""))
    if path.suffix != ".yaml":
        raise UsageError(f"{path}: a run file ends in `.yaml`; rename it")
    for item in overrides:
        if not item.partition("=")[0] or ("=" not in item and not item.startswith("~")):
            raise UsageError(f"{item!r}: not an override; write key=value, for example seed=3")


def _explain(error: Exception, owner: type | None = None) -> str:
    """One line out of Hydra's five: where, key, what, closest key."""
    chain = [e for e in (error.__cause__, error.__context__, error) if e]  # overrides chain by cause, files by context
    inner = next((e for e in chain if getattr(e, "full_key", None)), chain[0])
    if not (hasattr(inner, "full_key") or hasattr(error, "full_key")) and not str(inner):
        inner = error
    text = str(inner).split("\n    full_key:")[0]
    key = getattr(inner, "full_key", None)
    where = re.match(r"In '(.+?)': \w+ raised", str(error))
    if unknown := re.search(r"Key '([\w.-]+)' (?:not in '(\w+)'|is not in struct)", text):
        kind = next((k for k in (getattr(inner, "object_type", None), owner) if is_dataclass(k)), None)
        kind = kind or getattr(schema, unknown[2] or "", None)
        known = [f.name for f in fields(kind)] if is_dataclass(kind) else _siblings(inner)
        close = get_close_matches(unknown[1], known, 1)
        text = f"no such key; did you mean `{close[0]}`?" if close else f"no such key; known: {', '.join(known)}"
        if not close and kind is None and re.search(r"\.(options|args)\.", str(key)):  # open: its owner knows more keys
            text = f"not in the run file, which has {', '.join(known) or 'none'} there; write `+{key}=...` to add it"
    elif "sweep" in text.lower() or "--multirun" in text:
        text = "a list of values is not an override; repeat with `epochs`, or write one run file a value"
    text = re.sub(r"\s*\n\s*", " ", text.partition("\nConfig search path:")[0]).strip()
    return " ".join(filter(None, [f"in {where[1]}.yaml:" if where else "", f"{key}:" if key else "", text]))


def _siblings(error: BaseException) -> list[str]:
    """The names that a key which is none of them stands beside: candidates, suites or gates."""
    parent: Any = getattr(error, "parent_node", None)
    return [str(key) for key in parent] if parent is not None else []


def _check(run: RunConfig, path: Path) -> None:
    """Ranges and cross references; all faults at once, with their key paths."""
    faults = [*_faults_of_values(run), *_faults_of_names(run)]
    if faults:
        raise UsageError(f"{path}: " + "; ".join(faults))


def _faults_of_values(run: RunConfig) -> list[str]:
    rules: list[tuple[bool, str]] = [
        (not unfit(run.name), f"name is {run.name!r}; {unfit(run.name)}"),
        (0 < run.alpha <= 0.25, f"alpha is {run.alpha}; one-sided, between 0 and 0.25"),
        (bool(run.candidates), "candidates is empty; name at least one"),
        (bool(run.suites), "suites is empty; name at least one"),
        (bool(run.reference.weights), "reference.weights is empty; give a path or the name of a fetched model"),
        (run.runner.engines >= 1, f"runner.engines is {run.runner.engines}; 1 is the least"),
        (run.runner.concurrency >= 1, f"runner.concurrency is {run.runner.concurrency}; 1 is the least"),
        (run.rehearsal.samples >= 1, f"rehearsal.samples is {run.rehearsal.samples}; 1 is the least"),
        (run.engine.start_seconds > 0, f"engine.start_seconds is {run.engine.start_seconds}; it must be above 0"),
        (run.engine.request_seconds > 0, f"engine.request_seconds is {run.engine.request_seconds}; it must be above 0"),
        (0 <= run.engine.restarts <= 10, f"engine.restarts is {run.engine.restarts}; 0 to 10"),
        (
            run.engine.hang_seconds is None or run.engine.hang_seconds > run.engine.request_seconds,
            f"engine.hang_seconds is {run.engine.hang_seconds}; above request_seconds, or a slow call counts as a hang",
        ),
    ]
    for name, suite in run.suites.items():
        rules += [
            (suite.epochs >= 1, f"suites.{name}.epochs is {suite.epochs}; 1 is the least"),
            (suite.samples is None or suite.samples >= 1, f"suites.{name}.samples is {suite.samples}; 1 is the least"),
            (
                0 < suite.again <= 1,
                f"suites.{name}.again is {suite.again}; above 0 (A/A is part of every run), at most 1",
            ),
        ]
    for name, gate in run.gates.items():
        derived = gate.margin == 0 and bool(DERIVING & gate.options.keys())
        finite = derived or 0 < gate.margin < math.inf
        rules.append((finite, f"gates.{name}.margin is {gate.margin}; a margin is above 0, and finite"))
    return [text for holds, text in rules if not holds]


def unfit(name: str) -> str:
    """Why a name cannot become that of a file or a folder; empty: it can."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        return "use letters, digits, `.`, `_`, `-`"
    return f"use at most {LONGEST_NAME} bytes" if len(name.encode()) > LONGEST_NAME else ""


def _faults_of_names(run: RunConfig) -> list[str]:
    faults: list[str] = []
    for name in run.candidates:
        if name.startswith("reference") or unfit(name):
            faults.append(f"candidates.{name}: not a name for a candidate; {unfit(name) or 'the reference has it'}")
    faults += [f"suites.{name}: not a name for a suite; {unfit(name)}" for name in run.suites if unfit(name)]
    shipped = {p.stem for p in (content_dir("conf") / "suite").glob("*.yaml")}
    for name, gate in run.gates.items():
        if gate.suite not in run.suites and gate.suite not in shipped:
            close = get_close_matches(gate.suite, [*run.suites, *shipped], 1)
            hint = (
                f"; did you mean `{close[0]}`?" if close else f"; known: {', '.join(sorted({*run.suites, *shipped}))}"
            )
            faults.append(f"gates.{name}.suite: no suite `{gate.suite}`{hint}")
    present = [gate for gate in run.gates.values() if gate.suite in run.suites]
    for name in run.suites:
        if not any(gate.suite == name for gate in present):
            faults.append(f"suites.{name}: no gate judges it; add one under `gates:`")
    if run.suites and not any(gate.gating for gate in present):
        faults.append("gates: none is gating; no checks is not a pass")
    return faults
