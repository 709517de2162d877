"""Text to ids and back, against ids that other engines gave; the chat template of the file."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalrig.errors import UsageError
from evalrig.refengine.chat_template import ChatTemplate, ChatTemplateError
from evalrig.refengine.engine import Engine
from evalrig.refengine.tokenizer import TextStream, Tokenizer

WIRE = Path(__file__).parent / "data" / "wire"


@pytest.mark.parametrize("name", ["7-tokenize-text", "7-tokenize-special"])
def test_ids_are_those_of_the_recorded_server(tokenizer: Tokenizer, name: str) -> None:
    exchange = json.loads((WIRE / f"{name}.json").read_text())
    assert tokenizer.encode(exchange["request"]["prompt"]) == exchange["response"]["tokens"]


def test_chat_ids_end_with_those_of_a_template_without_its_own_system_message(engine: Engine) -> None:
    exchange = json.loads((WIRE / "7-tokenize-messages.json").read_text())
    text = engine.template.render(exchange["request"]["messages"])
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>assistant\n")
    ids = engine.tokenizer.encode(text, add_special=False)
    assert ids[-21:] == exchange["response"]["tokens"]


def test_digits_are_split(tokenizer: Tokenizer) -> None:
    assert [tokenizer.decode([i]) for i in tokenizer.encode("in 1984")] == ["in", " ", "1", "9", "8", "4"]


WRITABLE = st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs", "Cc"], include_characters="\n\t")
"""The vocabulary has no token for some control characters, nor for the first byte of planes 4 to 11."""


@given(text=st.text(WRITABLE, max_size=60))
@settings(max_examples=200, deadline=None)
def test_text_survives(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special=False) == text


@given(ids=st.lists(st.integers(0, 49151), max_size=12))
@settings(max_examples=200, deadline=None)
def test_any_ids_decode_as_the_library_decodes_them(tokenizer: Tokenizer, ids: list[int]) -> None:
    assert tokenizer.decode(ids, skip_special=False) == tokenizer._fast.decode(ids, skip_special_tokens=False)


@given(text=st.text(WRITABLE, max_size=40).filter(lambda text: "\ufffd" not in text), cut=st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_a_stream_gives_whole_characters_and_in_the_end_the_same_text(
    tokenizer: Tokenizer, text: str, cut: int
) -> None:
    ids = tokenizer.encode(text)
    ids = ids[: max(0, len(ids) - cut)]
    stream = TextStream(tokenizer, skip_special=False)
    pieces = [stream.push(token) for token in ids]
    assert "\ufffd" not in "".join(pieces)
    assert "".join([*pieces, stream.finish()]) == tokenizer.decode(ids, skip_special=False)


def test_ids_outside_the_vocabulary_have_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([999999, -3]) == ""


def test_a_template_that_refuses_is_the_requests_fault() -> None:
    template = ChatTemplate("{{ raise_exception('no tools here') }}", special_tokens={})
    with pytest.raises(ChatTemplateError, match="no tools here"):
        template.render([{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    "source", ["{{ messages.__class__.__mro__ }}", "{{ ''.__class__.__base__.__subclasses__() }}", "{{ 1 / 0 }}"]
)
def test_a_template_cannot_reach_out(source: str) -> None:
    with pytest.raises((ChatTemplateError, ZeroDivisionError)):
        ChatTemplate(source, special_tokens={}).render([{"role": "user", "content": "x"}])


def test_a_broken_template_stops_the_start() -> None:
    with pytest.raises(UsageError, match="does not compile"):
        ChatTemplate("{% for %}", special_tokens={})
