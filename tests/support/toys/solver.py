"""An engine that knows how the shipped contest problems are solved (`kind: toys.solver`), and may forget some."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evalrig import fetch
from evalrig.engine import Sampling
from evalrig.types import Completion, Message, Tool
from toys.engine import Toy, ToyOptions, tokens


@dataclass(kw_only=True)
class SolverOptions(ToyOptions):
    forgets: int = 0
    """So many problems, from the first on, are answered with a wrong program."""


def _rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in fetch.path_of("livecodebench", name).read_text(encoding="utf-8").splitlines()]


class Solver(Toy):
    """Says a text by heart where a question is known, and what the toy says elsewhere."""

    Options = SolverOptions

    def __init__(self, *made: Any) -> None:
        super().__init__(*made)
        forgets = self.options.forgets if isinstance(self.options, SolverOptions) else 0
        solutions = {row["question_id"]: row for row in _rows("solutions.jsonl")}
        self.known = {
            row["question_title"]: solutions[row["question_id"]]["wrong"][0]["code"]
            if number < forgets
            else solutions[row["question_id"]]["reference"]
            for number, row in enumerate(_rows("sample.jsonl"))
        }
        self.heard: dict[tuple[int, ...], str] = {}

    async def tokenize(
        self, prompt: str | Sequence[Message], tools: Sequence[Tool] = (), answer: bool = True
    ) -> tuple[int, ...]:
        ids = await super().tokenize(prompt, tools, answer)
        if not isinstance(prompt, str):
            self.heard[ids] = prompt[-1].content.partition("\n")[0]
        return ids

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        code = self.known.get(self.heard.get(tuple(ids), ""))
        if code is None:
            return await super().generate(ids, sampling)
        text = f"```python\n{code}```\n"
        return Completion(
            text=text, token_ids=tokens(text), prompt_tokens=len(ids), completion_tokens=len(text), finish="stop"
        )
