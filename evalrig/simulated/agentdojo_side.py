"""AgentDojo's four suites of user tasks, without its attacks: environments, tools and utility checks.

Its pipeline package imports every vendor's client; the two modules of it that are needed are loaded beside stubs.
"""

import importlib
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

VERSION = "v1.2.2"
_attempts: dict[str, "_Attempt"] = {}


def _stub(name: str, **members: Any) -> None:
    module = sys.modules[name] = ModuleType(name)
    module.__dict__.update(members)


_root = Path(importlib.import_module("agentdojo").__path__[0])
_stub("agentdojo.agent_pipeline", __path__=[str(_root / "agent_pipeline")])
_stub("agentdojo.agent_pipeline.llms", __path__=[])
_stub("agentdojo.agent_pipeline.llms.google_llm", EMPTY_FUNCTION_NAME="")
_stub("agentdojo.logging", Logger=None)
_shown: Any = importlib.import_module("agentdojo.agent_pipeline.tool_execution").tool_result_to_str
_runtime: Any = importlib.import_module("agentdojo.functions_runtime")
_suites: dict[str, Any] = importlib.import_module("agentdojo.task_suite.load_suites").get_suites(VERSION)
_yaml: Any = importlib.import_module("yaml")


class _Attempt:
    """One task in an environment of its own."""

    def __init__(self, suite: str, task: str) -> None:
        self.task: Any = _suites[suite].user_tasks[task]
        self.runtime = _runtime.FunctionsRuntime(_suites[suite].tools)
        self.environment = self.task.init_environment(_environment(suite).model_copy(deep=True))
        self.before = self.environment.model_copy(deep=True)
        self.calls: list[Any] = []

    def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """What a tool gives, as text; `refused` where it says no."""
        if name not in self.runtime.functions:
            return {"refused": f"there is no tool {name!r}"}
        self.calls.append(_runtime.FunctionCall(function=name, args=arguments))
        given, error = self.runtime.run_function(self.environment, name, arguments)
        return {"refused": error} if error is not None else {"text": _shown(given)}

    def judged(self, answer: str) -> dict[str, Any]:
        """By the task's own check of the calls, else by that of the environment and the answer."""
        success = self.task.utility_from_traces(answer, self.before, self.environment, self.calls)
        if success is None:
            success = self.task.utility(answer, self.before, self.environment)
        return {"success": bool(success), "detail": "" if success else "the task's own check says no"}

    def gold(self) -> dict[str, Any]:
        """The known answer: calls, and the last words."""
        calls = self.task.ground_truth(self.before.model_copy(deep=True))
        return {
            "calls": [[call.function, dict(call.args)] for call in calls],
            "answer": self.task.GROUND_TRUTH_OUTPUT,
        }


def answer(question: dict[str, Any]) -> Any:
    """One question of the parent's."""
    match question["ask"]:
        case "list":
            return _listed()
        case "open":
            _attempts[question["attempt"]] = _Attempt(question["suite"], question["task"])
            return {}
        case "close":
            _attempts.pop(question["attempt"], None)
            return {}
        case _ if question["attempt"] not in _attempts:
            return {"unknown": True}
        case "call":
            return _attempts[question["attempt"]].call(question["name"], question["arguments"])
        case "judge":
            return _attempts[question["attempt"]].judged(question["answer"])
        case "gold":
            return _attempts[question["attempt"]].gold()
        case other:
            raise ValueError(f"no question {other!r}")


@cache
def _environment(suite: str) -> Any:
    """As a suite begins, with harmless text where an attack would stand; always copied."""
    return _suites[suite].load_and_inject_default_environment({})


def _listed() -> dict[str, Any]:
    """All tasks and tools, and what the model is told first."""
    words = _yaml.safe_load((_root / "data" / "system_messages.yaml").read_text(encoding="utf-8"))
    return {"system": words["default"], "suites": {name: _suite(name) for name in _suites}}


def _suite(name: str) -> dict[str, Any]:
    suite = _suites[name]
    tools = [
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters.model_json_schema()}
        for tool in suite.tools
    ]
    tasks = [
        {
            "id": task.ID,
            "prompt": task.PROMPT,
            "difficulty": task.DIFFICULTY.name.lower(),
            "needed": len(task.ground_truth(task.init_environment(_environment(name).model_copy(deep=True)))),
        }
        for task in suite.user_tasks.values()
    ]
    return {"tools": tools, "tasks": tasks}
