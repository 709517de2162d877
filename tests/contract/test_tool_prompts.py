"""Conversations with tools as token ids: what is sent to each server, and what two live ones make of the same template."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from toys.gguf_model import TOOL_TEMPLATE, tiny_model
from toys.runs import carry_out

from evalrig.analysis.token_classes import TokenClass, classify
from evalrig.conversation import conversation, offered
from evalrig.engine import Engine, Launch
from evalrig.engines.endpoint import Endpoint, EndpointOptions
from evalrig.engines.llama_cpp import LlamaCpp, LlamaCppOptions
from evalrig.engines.refengine import Refengine, RefengineOptions
from evalrig.engines.replay import Replay
from evalrig.engines.sglang import Sglang
from evalrig.engines.vllm import Vllm
from evalrig.evidence import Gathered
from evalrig.ladder import HISTORY, QUESTION, WEATHER
from evalrig.turns import CALLS_UNSHOWN, RESULTS_UNSHOWN, REWRITTEN, TOOLS_UNSHOWN, Turn, asked, finished
from evalrig.types import Message, State, Tool, Variant

DONE = (*HISTORY, Message(role="assistant", content="Rain, 9 C."))
SHOWN = (
    "<|im_start|>system\n<tools>\n"
    '{"type": "function", "function": {"name": "get_weather", "description": "Get the weather in a city", "parameters": '
    '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}'
    "\n</tools> answer with <tool_call>{json}</tool_call><|im_end|>\n"
)
ASKED = f"{SHOWN}<|im_start|>user\nWhat is the weather in Paris?<|im_end|>\n"
CALLED = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call><|im_end|>'


async def _told(engine: Engine) -> dict[str, Any]:
    turns = {
        "call": await finished(engine, HISTORY[:2], (WEATHER,)),
        "answer": await finished(engine, DONE, (WEATHER,)),
        "open": await asked(engine, HISTORY, (WEATHER,)),
    }
    return (
        turns
        | {f"{name}, given": await engine.pieces(turn.given) for name, turn in turns.items()}
        | {f"{name}, before": "".join(await engine.pieces(turn.before)) for name, turn in turns.items()}
    )


def told(folder: Path, kind: Any, options: Any, template: str = TOOL_TEMPLATE, call: Any = _told) -> Any:
    model = tiny_model(folder / "model.gguf", template=template)
    variant = Variant(name="arm", role="reference", engine=kind.__name__, weights=str(model))
    engine = kind(variant, options, Launch(log=folder / "log", start_seconds=60, request_seconds=60))

    async def go() -> Any:
        try:
            await engine.start()
            return await call(engine)
        finally:
            await engine.stop()

    return asyncio.run(asyncio.wait_for(go(), 120))


@pytest.fixture(scope="module")
def refengine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return told(tmp_path_factory.mktemp("refengine"), Refengine, RefengineOptions(kv_pool_mb=16))


def test_a_call_is_the_turn_that_the_template_writes_to_its_end(refengine: dict[str, Any]) -> None:
    assert refengine["call, before"] == f"{ASKED}<|im_start|>assistant\n"
    assert "".join(refengine["call, given"]) == CALLED
    assert "".join(refengine["answer, given"]) == "Rain, 9 C.<|im_end|>"
    assert refengine["open, before"].endswith('rain, 9 C"}<|im_end|>\n<|im_start|>assistant\n')
    assert refengine["open"].given == ()
    assert not any(refengine[name].fault for name in ("call", "answer", "open"))


def test_the_tokens_of_a_call_are_classed_for_the_map(refengine: dict[str, Any]) -> None:
    pieces = refengine["call, given"]
    found = classify(pieces)
    of = {kind: "".join(p for p, k in zip(pieces, found, strict=True) if k == kind) for kind in TokenClass}
    assert of[TokenClass.ARGUMENT] == "Paris"
    assert "get_weather" in of[TokenClass.STRUCTURE]
    assert of[TokenClass.END] == "<|im_end|>"
    assert of[TokenClass.PROSE] == ""


def test_llama_cpp_makes_the_same_tokens_of_the_same_template(tmp_path: Path, refengine: dict[str, Any]) -> None:
    options = LlamaCppOptions(tools=True, parallel=1, cache_type_k="f32", cache_type_v="f32", flash_attn=False)
    other = told(tmp_path, LlamaCpp, options)
    for name in ("call", "answer", "open"):
        assert other[name] == refengine[name], name


PLAIN = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""Shows neither tools nor calls."""
THINKING = TOOL_TEMPLATE.replace("'<|im_start|>assistant\\n' }}", "'<|im_start|>assistant\\n<think>\\n\\n</think>' }}")
"""Ready for an answer it opens and closes an empty thinking block, which a finished turn has not."""
FORGETS = TOOL_TEMPLATE.replace(
    "+ (message['content'] or '') }}", "+ (message['content'] or '') ~ messages | length }}"
)
"""The number of messages stands in every one of them."""


def test_what_a_template_leaves_out_is_said(tmp_path: Path) -> None:
    async def call(engine: Engine) -> list[Turn]:
        return [
            await asked(engine, (QUESTION,), (WEATHER,)),
            await asked(engine, HISTORY, ()),
            await finished(engine, HISTORY[:2], ()),
        ]

    found = told(tmp_path, Refengine, RefengineOptions(kv_pool_mb=16), PLAIN, call)
    assert [turn.fault for turn in found] == [TOOLS_UNSHOWN, CALLS_UNSHOWN, CALLS_UNSHOWN]


def test_a_tool_result_that_the_template_leaves_out_is_said() -> None:
    template = (
        "{{ tools }}{% for m in messages if m.role != 'tool' %}<|im_start|>{{ m.role }}\n{{ m.content }}{{ m.tool_calls }}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    assert turn(template, DONE)[2] == RESULTS_UNSHOWN
    assert turn(template.replace(" if m.role != 'tool'", ""), DONE)[2] == ""


class Templated:
    """As much of an engine as turns need: one token a character, of a template given here."""

    def __init__(self, template: str) -> None:
        from evalrig.refengine.chat_template import ChatTemplate

        self.template = ChatTemplate(template, special_tokens={})

    async def tokenize(
        self, prompt: str | Sequence[Message], tools: Sequence[Tool] = (), answer: bool = True
    ) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return tuple(map(ord, prompt))
        body = conversation(prompt, tools, "reasoning_content")
        text = self.template.render(body["messages"], add_generation_prompt=answer, tools=body.get("tools"))
        return tuple(map(ord, text))


def turn(template: str, messages: Sequence[Message]) -> tuple[str, str, str]:
    engine: Any = Templated(template)
    found = asyncio.run(finished(engine, messages, (WEATHER,)))
    return "".join(map(chr, found.before)), "".join(map(chr, found.given)), found.fault


def test_what_the_template_opens_and_the_turn_has_not_is_not_scored() -> None:
    before, given, fault = turn(THINKING, DONE)
    assert (before.endswith("<|im_start|>assistant\n"), given, fault) == (True, "Rain, 9 C.<|im_end|>", "")


def test_a_template_that_rewrites_what_stood_before_is_said() -> None:
    assert turn(FORGETS, DONE)[1:] == ("", REWRITTEN)


def test_reasoning_goes_under_the_name_that_the_engine_reads() -> None:
    thought = replace(DONE[-1], reasoning="hm")
    assert conversation([thought], (), "reasoning")["messages"][0]["reasoning"] == "hm"
    assert conversation([thought], (), "", answer=False) == {
        "messages": [{"role": "assistant", "content": "Rain, 9 C."}],
        "add_generation_prompt": False,
    }


@pytest.mark.parametrize(
    ("able", "expected"),
    [
        (Refengine.able(RefengineOptions()), True),
        (Vllm.able(Vllm.Options()), True),
        (Sglang.able(Sglang.Options()), True),
        (LlamaCpp.able(LlamaCppOptions(tools=True)), True),
        (LlamaCpp.able(LlamaCppOptions()), False),
        (Endpoint.able(EndpointOptions(dialect="sglang")), True),
        (Endpoint.able(EndpointOptions(dialect="openai")), False),
        (Replay.capabilities, False),
    ],
)
def test_an_engine_says_whether_it_can(able: Any, expected: bool) -> None:
    assert able.tool_prompts is expected


# ---- a whole run


def test_the_map_of_token_classes_shows_calls_and_their_arguments(tmp_path: Path) -> None:
    """Through a live engine: conversations with calls are scored, and the report says what structure and arguments cost."""
    model = tiny_model(tmp_path / "model.gguf", template=TOOL_TEMPLATE)
    rows = [
        {
            "id": f"talk-{n}",
            "messages": [
                {"role": "user", "content": f"What is the weather in {city}?"},
                {
                    "role": "assistant",
                    "tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": city}}}],
                },
                {"role": "tool", "content": "rain"},
                {"role": "assistant", "content": f"Rain in {city}."},
            ],
            "tools": [offered(WEATHER)],
        }
        for n, city in enumerate(["Paris", "London", "Oslo"])
    ]
    (tmp_path / "talks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    expect = {"weights": "bf16", "kv_cache": "bf16"}
    tree = {
        "defaults": ["schema", "_self_"],
        "name": "talks",
        "question": "May it be cheaper?",
        "output": str(tmp_path / "runs"),
        "engine": {"kind": "refengine", "options": {"kv_pool_mb": 16}},
        "reference": {"weights": str(model), "expect": expect},
        "candidates": {"int4": {"expect": {**expect, "weights": "int4"}, "args": {"quantize": "int4"}}},
        "suites": {"kl": {"kind": "kl", "options": {"prompts": str(tmp_path / "talks.jsonl"), "path_prompts": 0}}},
        "gates": {"kl_veto": {"kind": "kl_veto", "suite": "kl", "metric": "kl", "margin": 0.05}},
    }
    path = tmp_path / "talks.yaml"
    path.write_text(yaml.safe_dump(tree))
    finished = carry_out(path)
    assert {r.state for r in finished.folder.records("int4", "kl")} == {State.SCORED}
    gathered = Gathered(finished.folder)
    [suite] = gathered.plan.suites
    found = gathered.streamed(suite, "int4")
    assert found is not None
    classes = {row.name: row for row in found.result.classes}
    cities = len("ParisLondonOslo")
    assert classes["tool arguments"].tokens == cities
    assert classes["tool-call structure"].tokens > 3 * len("get_weather")
    assert classes["prose"].prompts == classes["tool arguments"].prompts == 3
    assert classes["tool arguments"].mean > 0
    report = (finished.folder.path / "report.html").read_text()
    assert "tool-call structure" in report
    assert "tool arguments" in report
