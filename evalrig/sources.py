"""Where a token stream comes from: a prompt that the reference answers, a finished conversation, or a plain text.

The first tag of such a sample is its source. `FIXED` among the tags: what is scored was given, not sampled.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec

from evalrig.errors import UsageError
from evalrig.types import FIXED, Message, Sample

T = TypeVar("T")
OWN = "own"
"""Source of the prompts that evalrig ships, and of the user's in their place."""
TEXT = "text"


class _Prompt(msgspec.Struct):
    id: str
    kind: str = ""
    messages: tuple[Message, ...] = ()
    prompt: str = ""


class _Text(msgspec.Struct):
    id: str
    text: str


def prompts(path: Path, where: str) -> list[Sample]:
    """A JSONL file of {id, kind, messages or prompt}; a conversation that ends with the assistant's message is fixed.

    Raises:
        UsageError: names file and line; `where` leads it.
    """
    rows: list[Sample] = []
    for at, row in _rows(path, _Prompt, where, "id, kind, messages or prompt"):
        if bool(row.prompt) == bool(row.messages):
            raise UsageError(f"{at}: needs either `messages` or `prompt`; give one of them")
        _can_be_shown(row.messages, at)
        tags = (OWN, row.kind) if row.kind else (OWN,)
        if row.messages and row.messages[-1].role == "assistant":
            if len(row.messages) < 2 or not row.messages[-1].content:
                raise UsageError(f"{at}: a finished conversation has a question and an answer; give both")
            tags = (*tags, FIXED)
        rows.append(Sample(id=row.id, prompt=row.prompt, messages=row.messages, tags=tags))
    return rows


def texts(path: Path, where: str) -> list[Sample]:
    """A JSONL file of {id, text}, each scored whole after its first token.

    Raises:
        UsageError: names file and line; `where` leads it.
    """
    rows: list[Sample] = []
    for at, row in _rows(path, _Text, where, "id, text"):
        if not row.text:
            raise UsageError(f"{at}: an empty text; leave the line out")
        rows.append(Sample(id=row.id, prompt=row.text, tags=(TEXT, FIXED)))
    return rows


def borrowed(source: str, samples: Sequence[Sample], where: str) -> list[Sample]:
    """Samples of the suite `source` as prompts: its questions, without choices and targets, under `<source>.<id>`."""
    rows: list[Sample] = []
    for sample in samples:
        at = f"{where}: {source}, sample {sample.id!r}"
        if sample.tools:
            raise UsageError(f"{at}: shows the model tools, which no engine here puts into token ids; leave it out")
        _can_be_shown(sample.messages, at)
        name = f"{source}.{sample.id}"
        cluster = f"{source}.{sample.cluster}" if sample.cluster else ""
        tags = (source, *(tag for tag in sample.tags if tag != FIXED))
        rows.append(replace(sample, id=name, choices=(), target="", cluster=cluster, tags=tags))
    return rows


def _can_be_shown(messages: Sequence[Message], at: str) -> None:
    """Engines make token ids of roles and contents; what else a message holds would be dropped without a word."""
    if any(message.tool_calls or message.reasoning for message in messages):
        raise UsageError(
            f"{at}: tool calls and reasoning of a message have no way into token ids; write them as content"
        )


def _rows(path: Path, kind: type[T], where: str, holds: str) -> Iterator[tuple[str, T]]:
    """Each line that is not blank, with where it stands."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{where}: cannot read {str(path)!r}: {error.strerror}; give a JSONL file") from error
    for number, line in enumerate(lines, 1):
        at = f"{where}: {path} line {number}"
        if line.strip():
            try:
                yield at, msgspec.json.decode(line, type=kind)
            except msgspec.MsgspecError as error:
                raise UsageError(f"{at}: {error}; a line holds {holds}") from error
