"""The chat route, rung by rung, and what each outcome means."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toys.engine import Toy, ToyOptions

from evalrig.engine import Capabilities, Chat, Launch, Sampling
from evalrig.errors import EngineError
from evalrig.ladder import WEATHER, climb
from evalrig.likeness import beside, climbed
from evalrig.preflight import prove
from evalrig.proof import Preflight, Rung, RungOutcome
from evalrig.types import Completion, Level, Message, Variant

LAUNCH = Launch(log=Path(), start_seconds=1, request_seconds=1)


def toy(**options: Any) -> Toy:
    return Toy(
        Variant(name="cheap", role="candidate", engine="toys.engine", weights="toy"), ToyOptions(**options), LAUNCH
    )


def climbing(engine: Toy) -> dict[str, Rung]:
    async def go() -> tuple[Rung, ...]:
        await engine.start()
        return await climb(engine)

    return {rung.name: rung for rung in asyncio.run(go())}


def proved(engine: Toy) -> Preflight:
    async def go() -> Preflight:
        await engine.start()
        return await prove(engine)

    return asyncio.run(go())


def changed(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Completion, Chat, Sampling], Completion]
) -> dict[str, Rung]:
    """The ladder of a toy whose answers are changed."""
    chat = Toy.chat

    async def instead(self: Toy, asked: Chat, sampling: Sampling) -> Completion:
        return change(await chat(self, asked, sampling), asked, sampling)

    monkeypatch.setattr(Toy, "chat", instead)
    return climbing(toy())


def test_every_rung_of_a_sound_engine() -> None:
    found = climbing(toy())
    assert [name for name, rung in found.items() if rung.outcome is not RungOutcome.PASSED] == ["reasoning apart"]
    assert len(found) == 15
    assert found["chat"].prompt_tokens > 0


def test_no_more_than_fifteen_short_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sampling] = []

    def count(answer: Completion, chat: Chat, sampling: Sampling) -> Completion:
        asked.append(sampling)
        return answer

    changed(monkeypatch, count)
    assert len(asked) == 13
    assert max(sampling.max_tokens for sampling in asked) == 48


def test_an_engine_that_refuses_every_chat_is_asked_once() -> None:
    found = climbing(toy(refuse_chats=True))
    assert [(rung.name, rung.outcome, rung.detail) for rung in found.values()] == [
        ("chat", RungOutcome.REFUSED, "cheap: HTTP 404")
    ]


def test_an_engine_that_dies_on_the_ladder_is_lost_and_not_judged() -> None:
    engine = toy()

    async def go() -> None:
        await engine.start()
        engine.table = None
        await climb(engine)

    with pytest.raises(EngineError):
        asyncio.run(go())


def test_a_stream_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = changed(monkeypatch, lambda a, chat, _: replace(a, text=a.text + "!") if chat.stream else a)
    assert (found["stream"].outcome, found["stream"].detail) == (RungOutcome.DIFFERS, "text")


def test_a_stop_string_that_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pitfall 18: a stop string that never fires."""
    found = changed(monkeypatch, lambda a, _, s: replace(a, text=a.text + s.stop[0], finish="length") if s.stop else a)
    assert found["stop string"].outcome is RungOutcome.IGNORED


def test_reasoning_in_the_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pitfall 16: thinking inside the answer."""
    mixed = changed(monkeypatch, lambda a, chat, _: replace(a, text="<think>so"))
    assert mixed["reasoning apart"].outcome is RungOutcome.MIXED


def test_reasoning_that_is_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = Message(role="assistant", content="x", reasoning="so")
    kept = changed(monkeypatch, lambda a, chat, _: replace(a, message=apart))
    assert kept["reasoning apart"].outcome is RungOutcome.PASSED


def test_calls_that_did_not_come_were_cut_or_are_of_another_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(answer: Completion, chat: Chat, sampling: Sampling) -> Completion:
        if not chat.tools or chat.tool_choice == "auto" or answer.message is None:
            return answer
        if chat.tool_choice == WEATHER.name:
            [call] = answer.message.tool_calls
            return replace(answer, message=replace(answer.message, tool_calls=(replace(call, name="rm"),)))
        return replace(
            answer, finish="length" if chat.stream else "stop", message=Message(role="assistant", content="")
        )

    found = changed(monkeypatch, other)
    assert [found[f"tool, {words}"].outcome.value for words in ("auto", "required", "required, stream", "named")] == [
        "pass",
        "no call",
        "cut",
        "differs",
    ]


def test_a_seed_that_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def drift(answer: Completion, chat: Chat, sampling: Sampling) -> Completion:
        calls.append(1)
        return replace(answer, text=f"{len(calls)}") if sampling.seed == 7 else answer

    assert changed(monkeypatch, drift)["same seed"].outcome is RungOutcome.DIFFERS


def test_an_engine_of_chats_alone_is_proved_by_its_ladder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toy, "capabilities", Capabilities(chat=True))
    found = proved(toy())
    assert (found.probes.prompt_digests, found.probes.logprob_digests) == ({}, {})
    assert {rung.name for rung in found.ladder} >= {"chat", "stream", "stop string"}
    assert not {rung.name for rung in found.ladder} & {"template", "same seed", "tool, auto"}


# ---- what it means


@pytest.fixture(scope="module")
def sound() -> Preflight:
    return proved(toy())


def with_rung(found: Preflight, name: str, **change: Any) -> Preflight:
    return replace(found, ladder=tuple(replace(r, **change) if r.name == name else r for r in found.ladder))


def test_a_refused_chat_invalidates_where_a_suite_needs_it() -> None:
    found = proved(toy(refuse_chats=True))
    for needed, level in ((True, Level.INVALID), (False, Level.WARN)):
        [finding] = climbed(found, needed)
        assert (finding.rule, finding.level) == ("chat", level)
        assert finding.text == "cheap: the plainest chat was refused: cheap: HTTP 404"


def test_a_sound_ladder_is_said_and_an_unsound_rung_is_a_warning(sound: Preflight) -> None:
    assert [finding.level for finding in climbed(sound, True)] == [Level.OK]
    [finding] = climbed(with_rung(sound, "stop string", outcome=RungOutcome.IGNORED, detail="it goes on"), True)
    assert (finding.level, finding.text) == (Level.WARN, "cheap: stop string: ignored, it goes on")
    assert list(climbed(replace(sound, ladder=()), True)) == []


def test_rungs_side_by_side(sound: Preflight) -> None:
    assert [f for f in beside(sound, sound) if f.rule in ("ladder", "prompt tokens")] == []
    refused = with_rung(sound, "min_p, penalties", outcome=RungOutcome.REFUSED)
    [finding] = [f for f in beside(sound, refused) if f.rule == "ladder"]
    assert (finding.level, finding.text) == (Level.WARN, "cheap: min_p, penalties: refused; of the reference: pass")


def test_other_prompt_tokens_in_a_chat_invalidate_within_one_kind_of_engine(sound: Preflight) -> None:
    """SGLang adds eight tokens to every tool: counts of two kinds of engine say nothing."""
    more = with_rung(sound, "tool, auto", prompt_tokens=999)
    [finding] = [f for f in beside(sound, more) if f.rule == "prompt tokens"]
    assert finding.level is Level.INVALID
    elsewhere = replace(more, fingerprint=replace(more.fingerprint, engine="another"))
    assert [f for f in beside(sound, elsewhere) if f.rule == "prompt tokens"] == []
