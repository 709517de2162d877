"""Bad input: every wrong value is a clear 400, in the recorded shape, and the server lives on."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from evalrig.refengine.engine import Engine
from evalrig.refengine.fields import BadRequest, parse_object
from evalrig.refengine.requests import parse_generate

IDS = [504, 3575, 282]


def generate(**changes: Any) -> dict[str, Any]:
    return {"input_ids": IDS, "sampling_params": {"temperature": 0, "max_new_tokens": 1}, **changes}


def sampling(**changes: Any) -> dict[str, Any]:
    return generate(sampling_params={"temperature": 0, "max_new_tokens": 1, **changes})


BAD_GENERATE = {
    "no prompt": {"sampling_params": {}},
    "two prompts": generate(text="a"),
    "empty prompt": generate(input_ids=[]),
    "empty batch": {"text": []},
    "empty in a batch": generate(input_ids=[[1], []]),
    "mixed batch": generate(input_ids=[[1], 2]),
    "too deep": generate(input_ids=[[[1]]]),
    "text ids": generate(input_ids=["1"]),
    "fraction id": generate(input_ids=[1.5]),
    "boolean id": generate(input_ids=[True]),
    "null id": generate(input_ids=[None]),
    "id over the vocabulary": generate(input_ids=[1, 49152]),
    "negative id": generate(input_ids=[-1]),
    "huge id": generate(input_ids=[10**30]),
    "ids as text": generate(input_ids="1,2"),
    "text as number": {"text": 5},
    "text batch with a number": {"text": ["a", 5]},
    "longer than the context": generate(input_ids=[1] * 2049),
    "answer over the context": generate(input_ids=[1] * 2048),
    "sampling as a list": generate(sampling_params=[1]),
    "sampling as text": generate(sampling_params="greedy"),
    "temperature as text": sampling(temperature="0"),
    "temperature as a boolean": sampling(temperature=True),
    "negative temperature": sampling(temperature=-0.5),
    "infinite temperature": sampling(temperature=1e308),
    "top_p zero": sampling(top_p=0),
    "top_p above one": sampling(top_p=1.01),
    "top_k fraction": sampling(top_k=1.5),
    "top_k negative": sampling(top_k=-2),
    "max_new_tokens fraction": sampling(max_new_tokens=1.5),
    "max_new_tokens boolean": sampling(max_new_tokens=True),
    "max_new_tokens negative": sampling(max_new_tokens=-1),
    "max_new_tokens huge": sampling(max_new_tokens=10**12),
    "stop as a number": sampling(stop=3),
    "stop list with a number": sampling(stop=["a", 3]),
    "stop ids as text": sampling(stop_token_ids="2"),
    "stop ids nested": sampling(stop_token_ids=[[2]]),
    "seed as text": sampling(sampling_seed="7"),
    "ignore_eos as a number": sampling(ignore_eos=1),
    "regex": sampling(regex="[ab]+"),
    "penalty out of range": sampling(frequency_penalty=2.5),
    "repetition penalty zero": sampling(repetition_penalty=0),
    "penalty as text": sampling(presence_penalty="1"),
    "min_p above one": sampling(min_p=1.1),
    "min_p negative": sampling(min_p=-0.1),
    "unknown sampling key": sampling(no_such=1),
    "return_logprob as text": generate(return_logprob="yes"),
    "start as text": generate(return_logprob=True, logprob_start_len="0"),
    "start after the end": generate(return_logprob=True, logprob_start_len=4),
    "start below -1": generate(return_logprob=True, logprob_start_len=-2),
    "top over the vocabulary": generate(return_logprob=True, top_logprobs_num=49153),
    "top negative": generate(return_logprob=True, top_logprobs_num=-1),
    "token_ids_logprob out of range": generate(return_logprob=True, token_ids_logprob=[0, 49152]),
    "token_ids_logprob as text": generate(return_logprob=True, token_ids_logprob="260"),
    "too few per item": generate(input_ids=[IDS, IDS], return_logprob=[True]),
    "too few token ids per item": generate(input_ids=[IDS, IDS], return_logprob=True, token_ids_logprob=[[1]]),
    "rid as a number": generate(rid=5),
}


@pytest.mark.parametrize("name", BAD_GENERATE)
def test_generate_refuses(client: TestClient, name: str) -> None:
    answer = client.post("/generate", json=BAD_GENERATE[name])
    assert answer.status_code == 400, answer.text
    body = answer.json()
    assert "error" in body or (body["object"] == "error" and body["code"] == 400)
    assert len(answer.text) < 1200


USER = [{"role": "user", "content": "hi"}]
BAD_CHAT = {
    "no messages": {},
    "messages as text": {"messages": "hi"},
    "message as text": {"messages": ["hi"]},
    "no role": {"messages": [{"content": "hi"}]},
    "content as a number": {"messages": [{"role": "user", "content": 5}]},
    "an image": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
    "temperature as text": {"messages": USER, "temperature": "hot"},
    "n zero": {"messages": USER, "n": 0},
    "n huge": {"messages": USER, "n": 10**6},
    "top_logprobs huge": {"messages": USER, "logprobs": True, "top_logprobs": 10**6},
    "max_tokens as text": {"messages": USER, "max_tokens": "5"},
    "json output": {"messages": USER, "response_format": {"type": "json_object"}},
    "a forced tool": {"messages": USER, "tools": [], "tool_choice": "required"},
    "logit_bias": {"messages": USER, "logit_bias": {"2": 100}},
    "stream_options as text": {"messages": USER, "stream": True, "stream_options": "usage"},
    "stream as text": {"messages": USER, "stream": "yes"},
    "seed as a fraction": {"messages": USER, "seed": 1.5},
    "only a prefix": {"messages": [{"role": "assistant", "content": "x"}], "continue_final_message": True},
}


@pytest.mark.parametrize("name", BAD_CHAT)
def test_chat_refuses(client: TestClient, name: str) -> None:
    answer = client.post("/v1/chat/completions", json=BAD_CHAT[name])
    assert answer.status_code == 400, answer.text
    body = answer.json()
    assert (body["object"], body["code"], body["param"]) == ("error", 400, None)
    assert body["type"] in ("Bad Request", "BadRequestError")


BAD_BODIES = [
    b"",
    b"null",
    b"[]",
    b'"text"',
    b"{",
    b'{"input_ids": [1,',
    b'{"input_ids": [NaN]}',
    b'{"text": "a", "sampling_params": {"temperature": NaN}}',
    b'{"text": "a", "sampling_params": {"temperature": Infinity}}',
    b"\xff\xfe",
    b'{"text": "\xff"}',
    b'{"input_ids": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
]


@pytest.mark.parametrize("body", BAD_BODIES, ids=range(len(BAD_BODIES)))
@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions", "/tokenize", "/detokenize"])
def test_what_is_no_json_object_is_refused(client: TestClient, path: str, body: bytes) -> None:
    answer = client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["object"] == "error"


@pytest.mark.parametrize("body", [{"tokens": "1"}, {"tokens": [1.5]}, {"tokens": [[1], 2]}, {}])
def test_detokenize_refuses(client: TestClient, body: dict[str, Any]) -> None:
    assert client.post("/detokenize", json=body).status_code == 400


def test_the_server_lived_through_all_that(client: TestClient) -> None:
    answer = client.post("/generate", json=generate())
    assert answer.status_code == 200
    assert client.post("/flush_cache").status_code == 200


def test_the_pool_is_a_limit_too(engine: Engine) -> None:
    """A prompt inside the context that the whole pool could not hold."""
    small = type(engine.limits)(tokenizer=engine.tokenizer, context=2048, pages=10)
    with pytest.raises(BadRequest, match=r"whole KV pool"):
        parse_generate(generate(input_ids=[1] * 161), small)
    parse_generate(generate(input_ids=[1] * 160), small)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = ["text", "input_ids", "sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num"]
SAMPLING_KEYS = ["temperature", "top_p", "top_k", "max_new_tokens", "stop", "stop_token_ids", "sampling_seed", "min_p"]


@given(
    top=st.dictionaries(st.sampled_from([*KEYS, "token_ids_logprob", "stream", "rid"]), JSON),
    inner=st.dictionaries(st.sampled_from(SAMPLING_KEYS), JSON),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_values_are_accepted_or_refused_and_nothing_else(
    engine: Engine, top: dict[str, Any], inner: dict[str, Any]
) -> None:
    values = {"input_ids": IDS, "sampling_params": inner, **top}
    try:
        request = parse_generate(parse_object(json.dumps(values).encode()), engine.limits)
    except BadRequest:
        return
    assert all(0 <= token < 49152 for job in request.jobs for token in job.prompt)
