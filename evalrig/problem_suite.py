"""A coding suite of problems that a file gives: each a function to write, with tests that call it."""

from evalrig.code_suite import CodeSuite
from evalrig.engine import Engine
from evalrig.problems import Key, Problem, key_of, sample_of
from evalrig.proctor import Exam, Mark
from evalrig.suite import Attempt
from evalrig.types import Completion, Sample, Trace


class ProblemSuite(CodeSuite):
    """Its samples say themselves how they are graded: a `Key` is the target."""

    def drawn(self, problems: list[Problem]) -> list[Sample]:
        """Problems as samples, in the prompting that the options choose."""
        return [sample_of(problem, self.code_options.prompting) for problem in problems]

    async def attempt(self, engine: Engine, sample: Sample, epoch: int, trace: Trace | None) -> Attempt:
        """Ask once, find the program, run its tests."""
        said, prompt = await self.ask(engine, sample, epoch)
        code, mark = await self.examined(said, key_of(sample))
        return self.graded((said,), code, mark, prompt)

    async def examined(self, said: Completion, key: Key) -> tuple[str | None, Mark | str | None]:
        """See `tried`, with the tests of a problem."""
        return await self.tried(said, key.entry_point, key.stub, lambda code: self.marked(self._exam(key, code)))

    def _exam(self, key: Key, code: str) -> Exam:
        return Exam(
            code=code,
            tests=key.tests,
            entry_point="" if key.inside else key.entry_point,
            setup=key.setup,
            wall_seconds=self.code_options.wall_seconds,
        )
