"""Your own programming problems, or MBPP, HumanEval+ and MBPP+ from files that you have (problems.py says what a line holds)."""

from dataclasses import dataclass
from pathlib import Path

from evalrig.code_suite import CodeOptions
from evalrig.errors import UsageError
from evalrig.problem_suite import ProblemSuite
from evalrig.problems import read
from evalrig.types import Sample


@dataclass(kw_only=True)
class CodeJsonlOptions(CodeOptions):
    """Keys of `suites.<name>.options`."""

    path: str = ""
    """JSONL, `.gz` or not; must be given."""


class CodeJsonl(ProblemSuite):
    """Problems of the user's file."""

    Options = CodeJsonlOptions

    def __init__(self, name: str, options: CodeJsonlOptions) -> None:
        super().__init__(name, options)
        self.options: CodeJsonlOptions = options

    def samples(self) -> list[Sample]:
        """One a line, in the file's order."""
        where = f"suites.{self.name}.options.path"
        if not self.options.path:
            raise UsageError(f"{where}: no file; give a JSONL of problems")
        return self.drawn(read(Path(self.options.path).expanduser(), where))
