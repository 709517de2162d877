"""`/v1/completions`, and lists of logprobs that come with what is generated."""

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from threadpoolctl import threadpool_limits
from toys.gguf_model import tiny_model

from evalrig.refengine.engine import Engine, Settings, start_engine
from evalrig.refengine.server import create_app
from tests.unit.refengine.test_wire import events

PATH = "/v1/completions"
IDS = [80, 90, 100, 110, 120]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    model = tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
    with threadpool_limits(1):
        started = start_engine(Settings(model=model, pool_bytes=1 << 19, context=512))
        yield started
        started.scheduler.stop(10)


@pytest.fixture(scope="module")
def client(tiny: Engine) -> Iterator[TestClient]:
    with TestClient(create_app(tiny)) as opened:
        yield opened


def complete(client: TestClient, **changes: Any) -> dict[str, Any]:
    body = {"prompt": IDS, "max_tokens": 6, "temperature": 0, "ignore_eos": True, **changes}
    answer = client.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def native(client: TestClient, ids: list[int], most: int, **changes: Any) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": most, "ignore_eos": True}
    body = {"input_ids": ids, "sampling_params": sampling, "return_logprob": True, "top_logprobs_num": 5, **changes}
    return client.post("/generate", json=body).json()


def test_text_and_ids_are_one_prompt_alone_and_in_a_list(client: TestClient) -> None:
    ids = client.post("/tokenize", json={"prompt": "hello"}).json()["tokens"]
    other = client.post("/tokenize", json={"prompt": "abc"}).json()["tokens"]
    wanted = [complete(client, prompt=one)["choices"][0]["text"] for one in (ids, other)]
    for prompt in (["hello", "abc"], [ids, other]):
        answer = complete(client, prompt=prompt)
        assert [choice["text"] for choice in answer["choices"]] == wanted
        assert [choice["index"] for choice in answer["choices"]] == [0, 1]
        assert answer["usage"]["prompt_tokens"] == len(ids) + len(other)
        assert answer["usage"]["completion_tokens"] == 12
    assert complete(client, prompt="hello")["choices"][0]["text"] == wanted[0]


def test_choices_to_a_prompt_stand_together_and_its_tokens_count_once(client: TestClient) -> None:
    asked = {"prompt": [IDS, IDS[:3]], "n": 2, "temperature": 1.0, "seed": 3, "return_token_ids": True}
    answer = complete(client, **asked)
    prompts = [choice["prompt_token_ids"] for choice in answer["choices"]]
    assert prompts == [IDS, IDS, IDS[:3], IDS[:3]]
    assert answer["usage"]["prompt_tokens"] == 8
    texts = [choice["token_ids"] for choice in answer["choices"]]
    assert texts[0] != texts[1]
    assert [choice["token_ids"] for choice in complete(client, **asked)["choices"]] == texts


def test_the_numbers_are_those_of_generate(client: TestClient) -> None:
    choice = complete(client, logprobs=5, return_token_ids=True)["choices"][0]
    raw = native(client, IDS, 6)
    assert (choice["text"], choice["token_ids"]) == (raw["text"], raw["output_ids"])
    rows = raw["meta_info"]["output_token_logprobs"]
    assert choice["logprobs"]["token_logprobs"] == [row[0] for row in rows]
    best = [sorted(row.values(), reverse=True) for row in choice["logprobs"]["top_logprobs"]]
    assert all(
        set(ours) <= {entry[0] for entry in theirs}
        for ours, theirs in zip(best, raw["meta_info"]["output_top_logprobs"], strict=True)
    )


def test_echo_brings_the_prompt_and_its_logprobs(client: TestClient) -> None:
    choice = complete(client, logprobs=3, echo=True, max_tokens=2)["choices"][0]
    raw = native(client, IDS, 2, logprob_start_len=0)
    text = client.post("/detokenize", json={"tokens": IDS}).json()["text"]
    assert choice["text"] == text + raw["text"]
    found = choice["logprobs"]
    entries = raw["meta_info"]["input_token_logprobs"] + raw["meta_info"]["output_token_logprobs"]
    assert found["token_logprobs"] == [entry[0] for entry in entries]
    assert found["top_logprobs"][0] is None
    assert len(found["tokens"]) == len(found["text_offset"]) == len(found["top_logprobs"]) == len(IDS) + 2
    assert complete(client, echo=True, max_tokens=2)["choices"][0]["text"] == choice["text"]


@pytest.mark.parametrize("changes", [{}, {"logprobs": 2}, {"echo": True, "logprobs": 2}, {"n": 2, "temperature": 1}])
def test_a_stream_adds_up_to_the_answer(client: TestClient, changes: dict[str, Any]) -> None:
    body = {"prompt": [IDS, IDS[1:]], "max_tokens": 6, "temperature": 0, "seed": 1, "return_token_ids": True, **changes}
    whole = client.post(PATH, json=body).json()
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    found = events(client.post(PATH, json=streamed).text.split("\n"))
    assert found.pop() == "[DONE]"
    last = found.pop()
    assert last["choices"] == []
    assert last["usage"] | {"completion_tokens_details": None} == whole["usage"]
    for wanted in whole["choices"]:
        mine = [event["choices"][0] for event in found if event["choices"][0]["index"] == wanted["index"]]
        assert "".join(choice["text"] for choice in mine) == wanted["text"]
        assert [token for choice in mine for token in choice["token_ids"]] == wanted["token_ids"]
        assert mine[-1]["finish_reason"] == wanted["finish_reason"]
        assert [choice["finish_reason"] for choice in mine[:-1]] == [None] * (len(mine) - 1)
        assert [("prompt_token_ids" in choice) for choice in mine] == [True] + [False] * (len(mine) - 1)
        for key in ("tokens", "token_logprobs", "top_logprobs") if wanted["logprobs"] else ():
            assert [one for choice in mine for one in choice["logprobs"][key]] == wanted["logprobs"][key]


def test_what_changes_the_draw_is_applied(client: TestClient) -> None:
    greedy = complete(client, max_tokens=40, return_token_ids=True)["choices"][0]["token_ids"]

    def tokens(**changes: Any) -> list[int]:
        return complete(client, max_tokens=40, return_token_ids=True, **changes)["choices"][0]["token_ids"]

    assert tokens(frequency_penalty=0, presence_penalty=0, repetition_penalty=1) == greedy
    for changes in ({"frequency_penalty": 2}, {"presence_penalty": 2}, {"repetition_penalty": 2}):
        assert len(set(tokens(**changes))) > len(set(greedy)), changes
    hot = {"temperature": 2.0, "seed": 5}
    assert tokens(**hot, min_p=1.0) == tokens(**hot, top_k=1) == greedy
    assert tokens(**hot, min_p=0.0) != greedy
    stop = complete(client, max_tokens=40)["choices"][0]["text"][3]
    stopped = complete(client, max_tokens=40, stop=stop)["choices"][0]
    assert (stopped["finish_reason"], stopped["matched_stop"]) == ("stop", stop)
    assert stop not in stopped["text"]


BAD = {
    "no prompt": {"prompt": None},
    "empty text": {"prompt": ""},
    "an empty text in a list": {"prompt": ["a", ""]},
    "empty ids": {"prompt": []},
    "empty ids in a list": {"prompt": [[1], []]},
    "a number": {"prompt": 5},
    "mixed": {"prompt": ["a", [1]]},
    "mixed ids": {"prompt": [[1], "a"]},
    "a fraction": {"prompt": [1.5]},
    "id over the vocabulary": {"prompt": [260]},
    "negative id": {"prompt": [-1]},
    "max_tokens 0": {"max_tokens": 0},
    "max_tokens negative": {"max_tokens": -1},
    "longer than the context": {"prompt": [5] * 513},
    "answer over the context": {"max_tokens": 512},
    "logprobs over the vocabulary": {"logprobs": 261},
    "logprobs negative": {"logprobs": -1},
    "logprobs as a boolean": {"logprobs": True},
    "echo as text": {"echo": "yes"},
    "suffix": {"suffix": "end"},
    "best_of": {"best_of": 4},
    "n zero": {"n": 0},
    "too many answers": {"prompt": [[5]] * 100, "n": 100},
    "logit_bias": {"logit_bias": {"2": 100}},
    "json output": {"response_format": {"type": "json_object"}},
    "min_tokens": {"min_tokens": 2},
    "penalty out of range": {"presence_penalty": 3},
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_served_is_refused(client: TestClient, name: str, stream: bool) -> None:
    answer = client.post(PATH, json={"prompt": IDS, "max_tokens": 2, "stream": stream, **BAD[name]})
    assert answer.status_code == 400, answer.text
    assert (answer.json()["object"], answer.json()["code"]) == ("error", 400)
    assert len(answer.text) < 1200


def unpacked(meta: dict[str, Any], side: str) -> tuple[Any, Any]:
    shape = meta[f"{side}_top_logprobs_shape"]
    values = np.frombuffer(base64.b64decode(meta[f"{side}_top_logprobs_val_flat_b64"]), "<f4").reshape(shape)
    ids = np.frombuffer(base64.b64decode(meta[f"{side}_top_logprobs_idx_flat_b64"]), "<i4").reshape(shape)
    return values, ids


@pytest.mark.parametrize("top", [1, 7, 260])
def test_best_k_of_generated_tokens_are_the_same_in_every_form(client: TestClient, top: int) -> None:
    """What the decode path computed: one row a generated token, of all forms the same numbers."""
    wish = {"top_logprobs_num": top, "logprob_start_len": 2}
    nested = native(client, IDS, 5, **wish)["meta_info"]
    flags = {"return_flat_raw_top_logprobs": True, "return_flat_raw_output_top_logprobs": True}
    lists = native(client, IDS, 5, **wish, **flags)["meta_info"]
    packed = native(client, IDS, 5, **wish, **flags, return_flat_raw_top_logprobs_b64=True)["meta_info"]
    for side, rows, nulls in (("input", len(IDS) - 3, 1), ("output", 5, 0)):
        values, ids = unpacked(packed, side)
        assert packed[f"{side}_top_logprobs_shape"] == lists[f"{side}_top_logprobs_shape"] == [rows, top]
        assert packed[f"{side}_top_logprobs_null_prefix"] == nulls
        assert lists[f"{side}_top_logprobs_val_flat"] == values.ravel().tolist()
        assert lists[f"{side}_top_logprobs_idx_flat"] == ids.ravel().tolist()
        flat = [[entry[:2] for entry in row] for row in nested[f"{side}_top_logprobs"][nulls:]]
        assert flat == [
            [list(pair) for pair in zip(*row, strict=True)] for row in zip(values.tolist(), ids.tolist(), strict=True)
        ]
    values, ids = unpacked(packed, "output")
    # Greedy: the token that was taken is the best of its row, with the same number.
    chosen = packed["output_token_logprobs"]
    assert [entry[:2] for entry in chosen] == [
        list(pair) for pair in zip(values[:, 0].tolist(), ids[:, 0].tolist(), strict=True)
    ]
    if top == 260:
        assert np.exp(values.astype(np.float64)).sum(axis=1) == pytest.approx(1, abs=1e-5)
