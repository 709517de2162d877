"""HumanEval: 164 Python functions to complete below their docstrings, with the authors' tests."""

from dataclasses import dataclass
from pathlib import Path

from evalrig import fetch
from evalrig.code_suite import CodeOptions
from evalrig.problem_suite import ProblemSuite
from evalrig.problems import read
from evalrig.types import Sample


@dataclass(kw_only=True)
class HumanEvalOptions(CodeOptions):
    """Keys of `suites.<name>.options`."""

    path: str = ""
    """JSONL (`.gz` or not) of {task_id, prompt, entry_point, test, canonical_solution}; default: the fetched file."""


class HumanEval(ProblemSuite):
    """HumanEval by generation."""

    Options = HumanEvalOptions

    def __init__(self, name: str, options: HumanEvalOptions) -> None:
        super().__init__(name, options)
        self.options: HumanEvalOptions = options
        self.content = () if options.path else ("humaneval",)

    def samples(self) -> list[Sample]:
        """One a problem, in the authors' order."""
        path = Path(self.options.path).expanduser() if self.options.path else fetch.path_of("humaneval")
        return self.drawn(read(path, f"suites.{self.name}.options.path"))
