"""PIQA validation: which of two ways to do an everyday thing works. Scored by loglikelihood, not by generated text.

"Question: ... Answer:" and a choice; the choice with the larger summed loglikelihood is the model's answer.
Besides right or wrong, the lead of the right choice over the wrong one is kept, in nats: it moves long before
answers flip.
"""

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from evalrig import fetch
from evalrig.engine import Capabilities, Engine, Scoring
from evalrig.errors import UsageError
from evalrig.suite import Attempt, Suite, ids_sha256
from evalrig.types import Completion, Metric, Sample, Trace, Trajectory


@dataclass(kw_only=True)
class PiqaOptions:
    """Keys of `suites.<name>.options`."""

    path: str = ""
    """JSONL of {question, options, answer}; default: the fetched file."""


class _Row(msgspec.Struct):
    question: str
    options: str
    answer: str


class Piqa(Suite):
    """PIQA by loglikelihood."""

    Options = PiqaOptions
    family = "knowledge"
    metrics: tuple[Metric, ...] = (
        Metric(name="accuracy", kind="binary", units="points", scale=100.0, chance=0.5),
        Metric(name="lead", kind="continuous", units="nats"),
    )

    def __init__(self, name: str, options: PiqaOptions) -> None:
        super().__init__(name, options)
        self.options: PiqaOptions = options
        self.content = () if options.path else ("piqa",)

    def needs(self) -> Capabilities:
        """Logprobs of given tokens."""
        return Capabilities(prompt_logprobs=True)

    def samples(self) -> list[Sample]:
        """Rows whose question was not asked by an earlier row: a repeat is not new evidence."""
        path = Path(self.options.path).expanduser() if self.options.path else fetch.path_of("piqa")
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            where = f"suites.{self.name}.options.path"
            raise UsageError(f"{where}: cannot read {str(path)!r}: {error.strerror}; give a JSONL file") from error
        seen: set[str] = set()
        rows: list[Sample] = []
        for number, line in enumerate(lines):
            row = _decode(line, path, number)
            question = row.question.strip()
            choices = tuple(text.strip() for text in re.split(r"(?:^|\n)[AB]\. ", row.options)[1:])
            target = row.answer.partition(". ")[2].strip()
            if len(choices) != 2 or target not in choices or choices[0] == choices[1] or not all(choices):
                raise UsageError(
                    f"{path}: line {number + 1}: not two choices with the answer among them; restore the file"
                )
            if question not in seen:
                seen.add(question)
                prompt = f"Question: {question}\nAnswer:"
                rows.append(Sample(id=f"piqa-{number:04d}", prompt=prompt, choices=choices, target=target))
        return rows

    async def attempt(self, engine: Engine, sample: Sample, epoch: int, trace: Trace | None) -> Attempt:
        """Two scorings, one a choice."""
        prompt = await engine.tokenize(sample.prompt)
        scored = await asyncio.gather(*(_score(engine, prompt, sample.prompt, choice) for choice in sample.choices))
        turns = tuple(turn for turn, _ in scored)
        likelihood = [sum(turn.logprobs) for turn in turns]
        right = sample.choices.index(sample.target)
        lead = likelihood[right] - likelihood[1 - right]
        chosen = sample.choices[right if lead > 0 else 1 - right]  # a tie is no knowledge of the answer
        return Attempt(
            trajectory=Trajectory(turns=turns, answer=chosen),
            scores={"accuracy": float(lead > 0), "lead": lead},
            prompt_sha256=ids_sha256([token for _, ids in scored for token in ids]),
            retries=sum(turn.retries for turn in turns),
        )


async def _score(engine: Engine, prompt: tuple[int, ...], text: str, choice: str) -> tuple[Completion, tuple[int, ...]]:
    """One choice after the prompt, and the token ids seen. What the two token streams share is the prompt."""
    ids = await engine.tokenize(f"{text} {choice}")
    pairs: Any = zip(ids, prompt, strict=False)
    start = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ids), len(prompt)))
    scoring: Scoring = await engine.score(ids, max(1, start))
    turn = Completion(
        text=choice,
        token_ids=tuple(int(i) for i in scoring.token_ids),
        logprobs=tuple(float(x) for x in scoring.logprobs),
        prompt_tokens=start,
        seconds=round(scoring.seconds, 4),
        retries=scoring.retries,
    )
    return turn, ids


def _decode(line: bytes, path: Path, number: int) -> _Row:
    try:
        return msgspec.json.decode(line, type=_Row)
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path}: line {number + 1}: {error}; a line holds question, options, answer") from error
