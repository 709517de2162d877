"""The engine kind `refengine`: its options reach the process, and wrong ones are told before it starts."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from toys.gguf_model import tiny_model

from evalrig.engine import Launch
from evalrig.engines.refengine import Refengine, RefengineOptions
from evalrig.errors import UsageError
from evalrig.types import Variant


def variant(weights: Path) -> Variant:
    return Variant(name="candidate", role="candidate", engine="refengine", weights=str(weights))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tool_call_parser": "kimi_k2"}, "args.tool_call_parser: no parser 'kimi_k2'; known: hermes"),
        ({"reasoning_parser": "qwen3"}, "args.reasoning_parser: no parser 'qwen3'; known: think"),
    ],
)
def test_an_unknown_parser_is_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    model = tiny_model(tmp_path / "tiny.gguf")
    Refengine.resolve(variant(model), RefengineOptions(), "candidate")
    with pytest.raises(UsageError, match=re.escape(f"candidate.{words}")):
        Refengine.resolve(variant(model), RefengineOptions(**options), "candidate")


def test_tool_calls_are_taken_out_only_with_a_parser() -> None:
    assert not Refengine.able(RefengineOptions()).tools
    assert Refengine.able(RefengineOptions(tool_call_parser="hermes")).tools


def test_the_options_reach_the_process(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "tiny.gguf")
    options = RefengineOptions(kv_pool_mb=4, tool_call_parser="hermes", reasoning_parser="think", prefix_cache=True)
    launch = Launch(log=tmp_path / "log", start_seconds=60, request_seconds=30)

    async def flags() -> dict[str, Any]:
        engine = Refengine(variant(model), options, launch)
        try:
            await engine.start()
            return dict((await engine.fingerprint()).flags)
        finally:
            await engine.stop()

    found = asyncio.run(flags())
    assert (found["tool_call_parser"], found["reasoning_parser"]) == ("hermes", "think")
    assert found["disable_radix_cache"] is False
