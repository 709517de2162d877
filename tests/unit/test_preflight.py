"""What is proved about an engine before its first attempt."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys.engine import Toy, ToyOptions, table
from toys.nouns import small_folder
from toys.runs import Silent

from evalrig.engine import Launch, Sampling, Scoring
from evalrig.errors import EngineError
from evalrig.preflight import CONVERSATIONS, PROBES, Gatekeeper, prove
from evalrig.proof import Preflight
from evalrig.types import Completion, Level, Variant
from evalrig.validity import compare, expected


def toy(name: str = "cheap", **options: Any) -> Toy:
    expect = {"weights": "bf16"}
    variant = Variant(name=name, role="candidate", engine="toys.engine", weights="toy", expect=expect)
    return Toy(variant, ToyOptions(**options), Launch(log=Path(), start_seconds=1, request_seconds=1))


def proved(engine: Toy) -> Preflight:
    async def go() -> Preflight:
        await engine.start()
        return await prove(engine)

    return asyncio.run(go())


def invalid(found: list[Any]) -> list[str]:
    return [finding.text for finding in found if finding.level is Level.INVALID]


@pytest.fixture(scope="module")
def reference() -> Preflight:
    return replace(proved(toy()), variant="reference")


def test_everything_is_probed(reference: Preflight) -> None:
    legs = {f"{name}, {leg}" for name in ("prose", "chat") for leg in ("cached prefix", "decode")}
    assert set(reference.probes.prompt_digests) == {*PROBES, *CONVERSATIONS}
    assert set(reference.probes.logprob_digests) == {*PROBES, *CONVERSATIONS, *legs}
    assert reference.faults == ()
    assert invalid(expected(reference)) == []


def test_a_damaged_variant_differs_and_an_unquantised_one_does_not(reference: Preflight) -> None:
    """Pitfall 35: a gate that passes on self-comparison, or on a model never quantised."""
    assert invalid(compare(reference, proved(toy(noise=0.01)))) == []
    assert invalid(compare(reference, proved(toy()))) == [
        "cheap: bit-identical to the reference on every probe; the quantisation did not engage"
    ]


def test_another_template_is_found_by_the_prompt_tokens(reference: Preflight) -> None:
    assert invalid(compare(reference, proved(toy(noise=0.01, template="[{role}]{content}")))) == [
        "cheap: other prompt tokens than the reference on probes chat, chat-system; tokenizer or template differ",
        "cheap: other numbers of prompt tokens in 13 chats (`chat`: 50, the reference's 51); tokenizer or template differ",
    ]


def test_an_engine_that_is_not_what_was_expected(reference: Preflight) -> None:
    assert invalid(expected(proved(toy(says_weights="int4")))) == ["cheap: weights is int4, expected bf16"]


def test_what_an_engine_does_not_tell_is_a_warning() -> None:
    [finding, *_] = expected(proved(toy(says_weights="")))
    assert (finding.level, finding.text) == (Level.WARN, "cheap: weights is not told, expected bf16")


def test_nothing_expected_is_nothing_proved(reference: Preflight) -> None:
    found = [finding for finding in expected(replace(reference, expect={})) if finding.level is Level.WARN]
    assert [finding.text.rpartition("; ")[2] for finding in found] == ["set `expect.kv_cache`", "set `expect.weights`"]


def test_nan_is_a_fault() -> None:
    assert proved(toy(nan_every=3)).faults == (
        "probe `digits`: non-finite logprobs of given tokens",
        "probe `chat`: non-finite logprobs of given tokens",
    )


@pytest.mark.parametrize(("shift", "said"), [(0.5, "do not sum to one"), (np.nan, "non-finite logprobs")])
def test_rows_that_are_no_distribution_are_a_fault(monkeypatch: pytest.MonkeyPatch, shift: float, said: str) -> None:
    score = Toy.score

    async def shifted(self: Toy, ids: Any, start: int, top_k: int = 0) -> Scoring:
        found = await score(self, ids, start, top_k)
        return replace(found, top_logprobs=found.top_logprobs + np.float32(shift))

    monkeypatch.setattr(Toy, "score", shifted)
    faults = proved(toy()).faults
    assert len(faults) == 8
    assert all(said in fault for fault in faults)


def admitted(folder: Any, engine: Toy) -> tuple[bool, list[str]]:
    progress = Silent()

    async def go() -> bool:
        await engine.start()
        return await Gatekeeper(folder, progress).admit(engine)

    return asyncio.run(go()), progress.lines


def test_the_gatekeeper_admits_keeps_and_refuses(tmp_path: Path) -> None:
    folder = small_folder(tmp_path)
    assert admitted(folder, toy("reference"))[0]
    assert admitted(folder, toy("cheap", noise=0.1))[0]
    again, said = admitted(folder, toy("same"))
    assert not again
    assert said == ["INVALID: same: bit-identical to the reference on every probe; the quantisation did not engage"]
    kept = folder.preflight("same")
    assert kept is not None
    assert kept.variant == "same"
    assert folder.preflight("never") is None


def test_a_template_that_takes_no_system_message_has_to_refuse_it_in_both_arms(
    reference: Preflight, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenize = Toy.tokenize

    async def refusing(self: Toy, prompt: Any) -> tuple[int, ...]:
        if not isinstance(prompt, str) and prompt[0].role == "system":
            raise EngineError(f"{self.variant.name}: HTTP 400, request {id(prompt)} of {self.calls}")
        return await tokenize(self, prompt)

    monkeypatch.setattr(Toy, "tokenize", refusing)
    ours, theirs = replace(proved(toy("reference")), variant="reference"), proved(toy(noise=0.01))
    assert ours.faults == theirs.faults == ()
    assert invalid(compare(ours, theirs)) == []
    assert invalid(compare(reference, theirs)) == [
        "cheap: other prompt tokens than the reference on probes chat-system; tokenizer or template differ"
    ]


def test_why_a_second_process_was_refused_is_on_file(tmp_path: Path) -> None:
    folder = small_folder(tmp_path)
    assert admitted(folder, toy("reference"))[0]
    assert admitted(folder, toy("cheap", noise=0.1))[0]
    assert not admitted(folder, toy("cheap", noise=0.1, nan_every=7))[0]
    assert folder.failed("cheap") == "cheap: probe `chat-system`: non-finite logprobs of given tokens"
    assert admitted(folder, toy("cheap", noise=0.1))[0]
    assert folder.failed("cheap") == ""


class Speaking(Toy):
    """Its answers carry logprobs, of the model or of the law at the temperature asked for."""

    scaled = False

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        answer = await super().generate(ids, sampling)
        rows = table()[[ids[-1], *answer.token_ids[:-1]]].astype(np.float64) / (
            sampling.temperature if self.scaled else 1
        )
        rows -= np.logaddexp.reduce(rows, axis=1, keepdims=True)
        return replace(answer, logprobs=tuple(rows[np.arange(len(rows)), list(answer.token_ids)]))


class Scaling(Speaking):
    scaled = True


@pytest.mark.parametrize(
    ("kind", "mode", "level"), [(Speaking, "raw", Level.OK), (Scaling, "scaled", Level.WARN), (Toy, "", None)]
)
def test_logprobs_scaled_by_the_temperature_are_told_from_raw_ones(kind: type[Toy], mode: str, level: Any) -> None:
    """vLLM's processed mode, and SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB: another law than the model's."""
    made = toy()
    found = proved(kind(made.variant, made.options, made.launch))
    assert found.probes.mode == mode
    assert [one.level for one in expected(found) if one.rule == "logprobs mode"] == ([level] if level else [])
