"""The shops and airline of tau2-bench, without its simulated user and its judges. What comes of it is not a tau2-bench score.

Its programs import packages that no call of ours reaches: those are loaded as names without content, so that a use would raise.
"""

import copy
import importlib
import sys
from functools import cache
from types import ModuleType
from typing import Any

_attempts: dict[str, "_Attempt"] = {}


class _Silent:
    """In place of a log."""

    def debug(self, *words: Any) -> None:
        """Nothing is kept."""

    warning = info = error = debug


def _stub(name: str, **members: Any) -> None:
    module = sys.modules[name] = ModuleType(name)
    module.__dict__.update(members)


_stub("loguru", logger=_Silent())
_stub("dotenv", load_dotenv=lambda: True)  # no settings of the user's are read
_stub("addict", Dict=None)  # initial states: no task of these domains has one
_stub("deepdiff", DeepDiff=None)
_stub("toml")
_stub("yaml")
_domains: dict[str, Any] = {
    name: importlib.import_module(f"tau2.domains.{name}.environment") for name in ("airline", "retail")
}
_message: Any = importlib.import_module("tau2.data_model.message")


class _Own(dict[str, Any]):
    """A table of one attempt: a row is copied before it is given out, so that no other attempt sees what becomes of it.

    A copy of the whole database would take most of a second for each attempt.
    """

    def __init__(self, rows: dict[str, Any]) -> None:
        super().__init__(rows)
        self._shared = set(rows)

    def __getitem__(self, key: str) -> Any:
        if key in self._shared:
            super().__setitem__(key, copy.deepcopy(super().__getitem__(key)))
            self._shared.discard(key)
        return super().__getitem__(key)

    def __setitem__(self, key: str, value: Any) -> None:
        self._shared.discard(key)
        super().__setitem__(key, value)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 - it would call itself

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]


class _Attempt:
    """One task in an environment of its own."""

    def __init__(self, domain: str, task: str) -> None:
        self.domain, self.task = domain, task
        self.environment = _environment(domain)

    def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """What a tool gives, as text; `refused` where it says no."""
        if not self.environment.tools.has_tool(name):
            return {"refused": f"there is no tool {name!r}"}
        if name == "calculate" and "**" in str(arguments.get("expression", "")):
            return {"refused": "powers are not calculated here"}  # a short one may never end
        call = _message.ToolCall(id="call", name=name, arguments=arguments)
        given = self.environment.get_response(call)
        return {"refused" if given.error else "text": given.content}

    def judged(self) -> dict[str, Any]:
        """By the database alone: as the known actions leave it, or not."""
        success = self.environment.get_db_hash() == _due(self.domain, self.task)
        return {"success": success, "detail": "" if success else "the database is not as the known actions leave it"}


def answer(question: dict[str, Any]) -> Any:
    """One question of the parent's."""
    match question["ask"]:
        case "list":
            return {name: _listed(name) for name in question["domains"]}
        case "digests":
            return [_database(question["domain"]).get_hash(), _environment(question["domain"]).get_db_hash()]
        case "open":
            _attempts[question["attempt"]] = _Attempt(question["domain"], question["task"])
            return {}
        case "close":
            _attempts.pop(question["attempt"], None)
            return {}
        case _ if question["attempt"] not in _attempts:
            return {"unknown": True}
        case "call":
            return _attempts[question["attempt"]].call(question["name"], question["arguments"])
        case "judge":
            return _attempts[question["attempt"]].judged()
        case other:
            raise ValueError(f"no question {other!r}")


@cache
def _database(domain: str) -> Any:
    """As it begins; shared, and never given to a tool."""
    return _domains[domain].get_environment().tools.db


@cache
def _policy(domain: str) -> str:
    return _domains[domain].get_environment(db=_database(domain)).get_policy()


@cache
def _tasks(domain: str) -> dict[str, Any]:
    return {task.id: task for task in _domains[domain].get_tasks(None)}


def _environment(domain: str) -> Any:
    """A fresh one, on tables that copy what they give out."""
    begins = _database(domain)
    tables = {name: _Own(getattr(begins, name)) for name in type(begins).model_fields}
    return _domains[domain].get_environment(db=type(begins).model_construct(**tables))


def _replayed(domain: str, task: str) -> tuple[Any, list[str], int]:
    """The environment after the known actions, the writes among them that it refused, and how many it carried out."""
    environment, refused, written = _environment(domain), list[str](), 0
    for action in _tasks(domain)[task].evaluation_criteria.actions or []:
        call = _message.ToolCall(id="call", name=action.name, arguments=action.arguments, requestor=action.requestor)
        writes = environment.tools.tool_type(action.name) == "write"
        error = environment.get_response(call).error
        refused += [action.name] if writes and error else []
        written += writes and not error
    return environment, refused, written


@cache
def _due(domain: str, task: str) -> str:
    """Hash of the database that the known actions leave."""
    return _replayed(domain, task)[0].get_db_hash()


@cache
def _listed(domain: str) -> dict[str, Any]:
    """Its tasks and tools, and the policy."""
    tools = [tool.openai_schema["function"] for tool in _environment(domain).get_tools()]
    return {"policy": _policy(domain), "tools": tools, "tasks": [_told(domain, task) for task in _tasks(domain)]}


def _told(domain: str, task: str) -> dict[str, Any]:
    whole = _tasks(domain)[task]
    _, refused, written = _replayed(domain, task)
    actions = whole.evaluation_criteria.actions or []
    return {
        "id": task,
        "instructions": str(whole.user_scenario.instructions),
        "calls": [[action.name, action.arguments] for action in actions],
        "written": written,
        "refused": refused,
    }
