"""BFCL's simulated services and its checkers. Calls come as names with JSON arguments, and no text is ever evaluated.

Upstream evaluates calls as text and keeps its services in module globals; here a method is looked up by name among the tools on
offer, and every attempt, like every check, has services of its own.
"""

import ast
import copy
import importlib
import json
import sys
from types import ModuleType
from typing import Any

_EVAL = "bfcl_eval.eval_checker"
_backend: Any = importlib.import_module("bfcl_eval.constants.executable_backend_config")
_checker: Any = importlib.import_module(f"{_EVAL}.multi_turn_eval.multi_turn_checker")
_attempts: dict[str, "_Attempt"] = {}


class _Attempt:
    """One conversation: its services, and the calls made, turn by turn."""

    def __init__(self, entry: dict[str, Any], names: list[str]) -> None:
        self.entry = entry
        self.names = frozenset(names)
        self.services = _services(entry)
        self.turns: list[list[list[dict[str, Any]]]] = [[] for _ in entry["truth"]]

    def call(self, turn: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """What a tool gives, as text; `refused` where it says no."""
        if name not in self.names or name.startswith("_"):
            return {"refused": f"there is no tool {name!r}"}
        self.turns[turn].append([{"name": name, "arguments": copy.deepcopy(arguments)}])
        text = _carried_out(self.services, name, [], arguments)
        if text.startswith("Error during execution: "):
            return {"refused": text}
        refused = _refusal(text)
        return {"text": text} if refused is None else {"refused": refused}

    def judged(self) -> dict[str, Any]:
        """All calls again on fresh services, after each turn against those that the known answer leaves behind."""
        made: dict[str, dict[str, Any]] = {}

        def execute(**given: Any) -> tuple[list[str], dict[str, Any]]:
            services = made.setdefault(given["model_name"], {})
            if not services:
                services.update(_services(self.entry))
            return [_carried_out(services, *_parts(call)) for call in given["func_call_list"]], services

        _checker.execute_multi_turn_func_call = execute
        entry, truth = self.entry, self.entry["truth"]
        category = entry["id"].rsplit("_", 1)[0]
        found = _checker.multi_turn_checker(self.turns, truth, entry, category, "attempt")
        return {"success": bool(found["valid"]), "detail": str(found.get("error_message", ""))}


def answer(question: dict[str, Any]) -> Any:
    """One question of the parent's."""
    match question["ask"]:
        case "open":
            _attempts[question["attempt"]] = _Attempt(question["entry"], question["names"])
            return {}
        case "close":
            _attempts.pop(question["attempt"], None)
            return {}
        case "single":
            return _single(question)
        case _ if question["attempt"] not in _attempts:
            return {"unknown": True}
        case "call":
            attempt = _attempts[question["attempt"]]
            return attempt.call(question["turn"], question["name"], question["arguments"])
        case "judge":
            return _attempts[question["attempt"]].judged()
        case other:
            raise ValueError(f"no question {other!r}")


def _services(entry: dict[str, Any]) -> dict[str, Any]:
    """Fresh instances of the services that an entry involves, by class."""
    services: dict[str, Any] = {}
    for name in entry["involved_classes"]:
        service: Any = getattr(importlib.import_module(_backend.CLASS_FILE_PATH_MAPPING[name]), name)()
        if name not in _backend.STATELESS_CLASSES:
            state = copy.deepcopy(entry["initial_config"].get(name, {}))
            service._load_scenario(state, long_context="long_context" in entry["id"])
        services[name] = service
    return services


def _carried_out(services: dict[str, Any], name: str, places: list[Any], arguments: dict[str, Any]) -> str:
    """What a public method gives, as text in upstream's form; of two services that have it the later."""
    method = None
    for service in services.values():
        if not name.startswith("_") and callable(getattr(type(service), name, None)):
            method = getattr(service, name)
    try:
        if method is None:
            raise NameError(f"name '{name}' is not defined")
        given = method(*copy.deepcopy(places), **copy.deepcopy(arguments))
    except Exception as error:  # noqa: BLE001 - upstream's own rule: a service's error is what the model reads
        return f"Error during execution: {error}"
    if isinstance(given, dict):
        try:
            return json.dumps(given)
        except (TypeError, ValueError):
            return str(given)
    return str(given)


def _parts(call: Any) -> tuple[str, list[Any], dict[str, Any]]:
    """A model's call, or one of a known answer, which is Python text with literals alone."""
    if isinstance(call, dict):
        return call["name"], [], call["arguments"]
    tree: Any = ast.parse(call.strip(), mode="eval").body
    places = [ast.literal_eval(place) for place in tree.args]
    return tree.func.id, places, {word.arg: ast.literal_eval(word.value) for word in tree.keywords}


def _refusal(text: str) -> str | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    alone = isinstance(found, dict) and found.keys() == {"error"}
    return str(found["error"]) if alone else None


def _single(question: dict[str, Any]) -> dict[str, Any]:
    """Calls of one turn against the answers allowed."""
    checker, language = _single_checker()
    found = checker.ast_checker(
        question["functions"], question["calls"], question["allowed"], language, question["category"], "attempt"
    )
    wrong: Any = found.get("error", "")
    words = "; ".join(str(each) for each in wrong) if isinstance(wrong, list) else str(wrong)
    return {"success": bool(found["valid"]), "detail": words}


def _single_checker() -> tuple[Any, Any]:
    """Loaded when first asked for, with a stub in place of the list of models, which wants every vendor's client."""
    name = "bfcl_eval.constants.model_config"
    if name not in sys.modules:
        stub: Any = ModuleType(name)
        stub.MODEL_CONFIG_MAPPING = {"attempt": type("Model", (), {"underscore_to_dot": True})}
        sys.modules[name] = stub
    enums: Any = importlib.import_module("bfcl_eval.constants.enums")
    return importlib.import_module(f"{_EVAL}.ast_eval.ast_checker"), enums.Language.PYTHON
