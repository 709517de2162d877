"""Small Python functions that this project wrote, from trivial to moderate: a small model solves some of them and not all."""

from dataclasses import dataclass

from evalrig.code_suite import CodeOptions
from evalrig.content import content_dir
from evalrig.errors import UsageError
from evalrig.problem_suite import ProblemSuite
from evalrig.problems import read
from evalrig.types import Sample


@dataclass(kw_only=True)
class CodeBasicsOptions(CodeOptions):
    """Keys of `suites.<name>.options`."""

    prompting: str = "base"
    tag: str = ""
    """Only the problems that have this tag (a family, a level, `demo`); empty: all."""


class CodeBasics(ProblemSuite):
    """The project's own problems."""

    Options = CodeBasicsOptions

    def __init__(self, name: str, options: CodeBasicsOptions) -> None:
        super().__init__(name, options)
        self.options: CodeBasicsOptions = options

    def samples(self) -> list[Sample]:
        """One a problem; the first two tags are its family and its level."""
        problems = read(content_dir("suites") / "coding_basics" / "problems.jsonl", f"suites.{self.name}")
        if not self.options.tag:
            return self.drawn(problems)
        chosen = [problem for problem in problems if self.options.tag in problem.tags]
        if not chosen:
            known = ", ".join(sorted({tag for problem in problems for tag in problem.tags}))
            raise UsageError(f"suites.{self.name}.options.tag: no problem has {self.options.tag!r}; known: {known}")
        return self.drawn(chosen)
