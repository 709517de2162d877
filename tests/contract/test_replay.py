"""A run recorded from one engine and replayed from the file: the same records, the same verdict."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from toys.engine import Toy, ToyOptions
from toys.runs import carry_out, run_file

from evalrig.engine import Engine, Launch, Sampling
from evalrig.engines.replay import Replay, ReplayOptions
from evalrig.errors import EngineError
from evalrig.records import RunFolder
from evalrig.types import Message, Provenance, Record, Variant

LAUNCH = Launch(log=Path(), start_seconds=1, request_seconds=1)


def variant(weights: Path) -> Variant:
    return Variant(name="arm", role="reference", engine="replay", weights=str(weights))


async def asked(engine: Engine) -> list[Any]:
    await engine.start()
    ids = await engine.tokenize("some text")
    said = [ids, await engine.tokenize([Message(role="user", content="hello")])]
    said += [await engine.generate(ids, Sampling(max_tokens=5, temperature=1.0, seed=s)) for s in (1, 2)]
    for k in (0, 3, -1):
        scoring = await engine.score(ids, 2, k)
        said += [scoring.token_ids, scoring.logprobs, scoring.top_ids, scoring.top_logprobs]
    said += [await engine.fingerprint(), await engine.capacity(), engine.alive()]
    await engine.stop()
    return [*said, engine.alive()]


def test_replay_gives_the_answers_that_were_recorded(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    toy = Toy(variant(file), ToyOptions(noise=0.3, record=str(file)), LAUNCH)
    there, back = asyncio.run(asked(toy)), asyncio.run(asked(Replay(variant(file), ReplayOptions(), LAUNCH)))
    for own, replayed in zip(there, back, strict=True):
        if isinstance(own, np.ndarray):
            assert (own.dtype, own.shape, own.tobytes()) == (replayed.dtype, replayed.shape, replayed.tobytes())
        else:
            assert own == replayed


def bare(record: Record) -> Record:
    """Without what the clock says."""
    turns = tuple(replace(turn, seconds=0.0) for turn in record.trajectory.turns)
    kept = Provenance(prompt_sha256=record.provenance.prompt_sha256, tokens_sha256=record.provenance.tokens_sha256)
    return replace(record, trajectory=replace(record.trajectory, turns=turns), provenance=kept)


def records(folder: RunFolder) -> dict[tuple[str, str, str, int], Record]:
    plan = folder.plan()
    return {
        (r.variant, r.suite, r.sample, r.epoch): bare(r)
        for v in plan.variants
        for s in plan.suites
        for r in folder.records(v.name, s.name)
    }


def test_a_recorded_run_replayed_gives_the_same_records_and_the_same_verdict(tmp_path: Path) -> None:
    answers = {name: str(tmp_path / f"{name}.jsonl") for name in ("reference", "near", "far")}
    damage = {"near": {"noise": 0.02}, "far": {"noise": 1.0}}
    reference = {"weights": "toy", "expect": {"weights": "bf16"}}
    path = run_file(
        tmp_path,
        {name: {**args, "record": answers[name]} for name, args in damage.items()},
        reference={**reference, "args": {"record": answers["reference"]}},
    )
    first = carry_out(path)
    tree = yaml.safe_load(path.read_text())
    tree["engine"] = {"kind": "replay"}
    tree["reference"] = {**reference, "weights": answers["reference"]}
    tree["candidates"] = {name: {"expect": {"weights": "bf16"}, "weights": answers[name]} for name in damage}
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    second = carry_out(path)
    assert records(first.folder) == records(second.folder)
    one, two = (json.loads((run.folder.path / "verdict.json").read_text()) for run in (first, second))
    for verdict in (one, two):
        verdict["config_sha256"] = verdict["validity"] = ""
    assert one == two
    assert (one["outcome"], one["candidates"]["near"]["outcome"]) == ("NO-GO", "GO")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "no line with a `fingerprint`; say which engine these answers come from"),
        (["{"], "line 1: Input data was truncated; repair or record again"),
        ([{"ask": ["tokenize", "x"], "answer": [1]}], "no line with a `fingerprint`"),
    ],
)
def test_a_file_that_holds_no_recording_is_one_line(tmp_path: Path, lines: list[Any], said: str) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    with pytest.raises(EngineError) as caught:
        asyncio.run(Replay(variant(file), ReplayOptions(), LAUNCH).start())
    assert str(caught.value).startswith(f"{file}: {said}")


FINGERPRINT = {"engine": "x", "version": "1", "weights": "bf16", "kv_cache": "bf16"}


@pytest.mark.parametrize(
    "lists",
    [
        {},
        {"top_ids": [[1], [2]]},
        {"top_ids": [[1]], "top_logprobs": [[-1.0]]},
        {"top_ids": [[1, 2], [3, 4]], "top_logprobs": [[-1.0, -2.0], [-1.0, -2.0]]},
        {"top_ids": [[1], [3, 4]], "top_logprobs": [[-1.0], [-1.0, -2.0]]},
    ],
)
def test_a_scoring_with_other_lists_than_asked_is_no_answer(tmp_path: Path, lists: Any) -> None:
    file = tmp_path / "answers.jsonl"
    ask = {"ask": ["score", [1, 2, 3], 1, 1], "answer": {"logprobs": [-1.0, -2.0], **lists}}
    file.write_text(json.dumps({"fingerprint": FINGERPRINT}) + "\n" + json.dumps(ask) + "\n")

    async def go() -> None:
        engine = Replay(variant(file), ReplayOptions(), LAUNCH)
        await engine.start()
        with pytest.raises(EngineError, match="arm: a recorded scoring lacks top lists: 1 a token were asked for"):
            await engine.score([1, 2, 3], 1, 1)

    asyncio.run(go())


@pytest.mark.parametrize("answer", [None, {}, {"logprobs": []}, {"logprobs": [-1.0]}, {"logprobs": [-1.0, -2.0, -3.0]}])
def test_a_scoring_with_other_rows_than_asked_is_no_answer(tmp_path: Path, answer: Any) -> None:
    file = tmp_path / "answers.jsonl"
    ask = {"ask": ["score", [1, 2, 3], 1, 0], "answer": answer}
    file.write_text(json.dumps({"fingerprint": FINGERPRINT}) + "\n" + json.dumps(ask) + "\n")

    async def go() -> None:
        engine = Replay(variant(file), ReplayOptions(), LAUNCH)
        await engine.start()
        with pytest.raises(EngineError, match="arm: a recorded scoring lacks rows: 2 tokens were asked for"):
            await engine.score([1, 2, 3], 1, 0)
        with pytest.raises(EngineError, match="arm: no recorded answer to "):
            await engine.tokenize("never asked")

    asyncio.run(go())
