"""The vLLM adapter and its dialect: what is asked, what is read, what is refused, against what vLLM 0.32.0 answered."""

import asyncio
import copy
import json
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys.launched import IDS, WIRE, carry, engine_of, serving
from toys.program import Exchanges
from toys.recorded_tools import conversation_of

from evalrig.analysis.kl import row_faults
from evalrig.engine import Capabilities, Sampling
from evalrig.engines.vllm import Vllm
from evalrig.errors import EngineError
from evalrig.types import Capacity, Message
from evalrig.vllm_wire import FULL_ROWS, LONGEST_LIST, Client


def recorded(name: str) -> Any:
    return json.loads((WIRE / "vllm" / f"{name}.json").read_text())


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Generator[Exchanges]:
    monkeypatch.setattr("evalrig.wire.PAUSES", (0.0, 0.0))
    with Exchanges(WIRE / "vllm") as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join(10)


def ask(server: Exchanges, call: Callable[[Client], Any], max_logprobs: int = -1, vocabulary: int = 49152) -> Any:
    async def go() -> Any:
        client = Client("arm", f"http://127.0.0.1:{server.server_port}", 10)
        client.vocabulary, client.model, client.max_logprobs = vocabulary, "smollm2-135m", max_logprobs
        try:
            return await call(client)
        finally:
            await client.close()

    return asyncio.run(asyncio.wait_for(go(), 30))


def refusal(server: Exchanges, call: Callable[[Client], Any], **more: Any) -> str:
    with pytest.raises(EngineError) as caught:
        ask(server, call, **more)
    assert str(caught.value).startswith("arm: ")
    return str(caught.value).removeprefix("arm: ")


def instead(server: Exchanges, name: str, change: Callable[[Any], object]) -> None:
    """Serve only this exchange, with something done to its answer."""
    exchange = copy.deepcopy(recorded(name))
    change(exchange["response"])
    server.exchanges = [exchange]


# ---- scoring


@pytest.mark.parametrize("k", [0, 1, 5, 20])
def test_scoring_reads_as_recorded_k_or_k_plus_one_entries(server: Exchanges, k: int) -> None:
    """Pitfall 31: row i belongs to token i. With K+1 entries the token itself is the one too many."""
    found = ask(server, lambda client: client.score(IDS, 1, k))
    [(method, path, body)] = server.asked
    assert (method, path) == ("POST", "/v1/completions")
    assert body == recorded(f"5-prompt_logprobs-{k}")["request"]
    rows = recorded(f"5-prompt_logprobs-{k}")["response"]["choices"][0]["prompt_logprobs"][1:]
    own = [row[str(token)]["logprob"] for row, token in zip(rows, IDS[1:], strict=True)]
    assert found.token_ids.tolist() == IDS[1:]
    assert found.logprobs.tolist() == np.array(own, np.float32).tolist()
    assert found.top_ids.shape == found.top_logprobs.shape == (6, k)
    for row, ids, values in zip(rows, found.top_ids, found.top_logprobs, strict=True):
        best = sorted((entry["logprob"] for entry in row.values()), reverse=True)[:k]
        assert values.tolist() == np.array(best, np.float32).tolist()
        assert all(row[str(i)]["logprob"] == pytest.approx(x) for i, x in zip(ids, values, strict=True))
    assert not row_faults(found.top_logprobs, full=False).over_unity


def test_scoring_from_the_middle_takes_the_rows_of_those_tokens(server: Exchanges) -> None:
    whole = ask(server, lambda client: client.score(IDS, 1, 5))
    part = ask(server, lambda client: client.score(IDS, 4, 5))
    assert part.token_ids.tolist() == IDS[4:]
    assert part.logprobs.tolist() == whole.logprobs[3:].tolist()
    assert part.top_ids.tolist() == whole.top_ids[3:].tolist()


def rows_of(reply: Any) -> list[Any]:
    return reply["choices"][0]["prompt_logprobs"]


FAULTS: dict[str, Callable[[Any], object]] = {
    "a row missing": lambda reply: rows_of(reply).pop(),
    "no null row": lambda reply: rows_of(reply).__setitem__(0, {}),
    "no rows": lambda reply: reply["choices"][0].update(prompt_logprobs=None),
    "other tokens": lambda reply: rows_of(reply).__setitem__(2, rows_of(reply)[3]),
    "too few entries": lambda reply: rows_of(reply)[2].pop("2240"),
    "too many entries": lambda reply: rows_of(reply)[1].update({"5": {"logprob": -9.0}}),
    "another prompt": lambda reply: reply["usage"].update(prompt_tokens=8),
    "two answers": lambda reply: reply["choices"].append(reply["choices"][0]),
    "no answer": lambda reply: reply["choices"].clear(),
    "an error inside": lambda reply: reply.update(error={"message": "EngineCore encountered an issue", "code": 500}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_rows_that_are_not_those_asked_for_are_no_scoring(server: Exchanges, fault: str) -> None:
    instead(server, "5-prompt_logprobs-5", FAULTS[fault])
    assert refusal(server, lambda client: client.score(IDS, 1, 5))


def test_a_null_logprob_is_nan_and_found_by_preflight(server: Exchanges) -> None:
    instead(server, "5-prompt_logprobs-5", lambda reply: rows_of(reply)[2]["282"].update(logprob=None))
    assert (
        np.isnan(ask(server, lambda client: client.score(IDS, 1, 5)).logprobs).tolist() == [False, True] + [False] * 4
    )


def test_more_than_the_server_gives_is_not_sent(server: Exchanges) -> None:
    said = refusal(server, lambda client: client.score(IDS, 1, 21), max_logprobs=20)
    assert said == "top-K 21 is above the 20 that this server gives; lower it"
    said = refusal(server, lambda client: client.score(IDS, 1, LONGEST_LIST + 1))
    assert said == "top-K 1001 is above the 1000 that this server gives; lower it"
    assert (
        refusal(server, lambda client: client.score(IDS, 1, 60000))
        == "top-K 60000 is above the vocabulary of 49152; lower it"
    )
    assert server.asked == []


def test_ids_outside_the_vocabulary_are_not_sent(server: Exchanges) -> None:
    for call in (lambda c: c.score([504, 999999], 1, 5), lambda c: c.generate([504, -1], Sampling(max_tokens=1))):
        assert refusal(server, call) == "a token id lies outside the vocabulary of 49152; it was not sent"
    assert server.asked == []
    instead(server, "6-oov-token", lambda _: None)
    server.exchanges[0]["request"] |= {"return_token_ids": True}
    said = refusal(server, lambda c: c.generate([504, 999999], Sampling(max_tokens=1)), vocabulary=0)
    assert "HTTP 400" in said
    assert "Token id 999999 is out of vocabulary" in said


# ---- the whole vocabulary: row by row, for a few rows


def whole(vocabulary: int, texts: bool = False) -> Callable[[Any], None]:
    def change(reply: Any) -> None:
        row = {f"{'' if texts else 'token_id:'}{i}": float(-np.log(vocabulary)) for i in range(vocabulary)}
        reply["choices"][0]["logprobs"]["top_logprobs"] = [row]

    return change


def test_the_whole_vocabulary_is_taken_row_by_row(server: Exchanges, monkeypatch: pytest.MonkeyPatch) -> None:
    """184 tokens in one request grew a server to 9.5 GB, and the kernel ended it (engines/vllm.md)."""
    served: list[Any] = []
    exchange = recorded("4-completion-ids-return-ids")
    whole(8)(exchange["response"])

    def find(method: str, path: str, body: Any) -> tuple[int, Any]:
        served.append(body)
        reply = copy.deepcopy(exchange["response"])
        reply["usage"]["prompt_tokens"] = len(body["prompt"])
        return 200, reply

    monkeypatch.setattr(server, "find", find)
    found = ask(server, lambda client: client.score([0, 1, 2, 3, 4], 3, -1), vocabulary=8)
    assert [body["prompt"] for body in served] == [[0, 1, 2], [0, 1, 2, 3]]
    assert all((body["logprobs"], body["max_tokens"], body["temperature"]) == (8, 1, 0.0) for body in served)
    assert found.token_ids.tolist() == [3, 4]
    assert sorted(found.top_ids[0].tolist()) == list(range(8))
    assert np.exp(found.top_logprobs).sum(1) == pytest.approx(1)


def test_many_rows_over_the_whole_vocabulary_are_not_asked_for(server: Exchanges) -> None:
    ids = list(range(FULL_ROWS + 2))
    assert f"; {FULL_ROWS} at most, or the server dies" in refusal(server, lambda client: client.score(ids, 1, -1))
    said = refusal(server, lambda client: client.score(IDS, 6, -1), max_logprobs=20)
    assert said == "the server gives no whole vocabulary; start it with max_logprobs -1"
    said = refusal(server, lambda client: client.score(IDS, 6, -1), vocabulary=0)
    assert said == "the whole vocabulary was asked for, and its size is not known"
    assert server.asked == []


# ---- answers


def answered(client: Client, **more: Any) -> Any:
    return client.generate(IDS[:5], Sampling(max_tokens=4, **more))


def test_an_answer_is_asked_with_everything_explicit_and_read_as_recorded(server: Exchanges) -> None:
    """What is not sent the checkpoint's generation_config may decide."""
    found = ask(server, lambda client: answered(client, stop=("x",), seed=7))
    [(_, _, body)] = server.asked
    assert body == {
        "model": "smollm2-135m",
        "prompt": IDS[:5],
        **{"max_tokens": 4, "temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0},
        **{"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0},
        **{"stop": ["x"], "seed": 7, "logprobs": 0, "return_token_ids": True},
    }
    assert (found.text, found.token_ids, found.finish) == (" Paris.\n\n", (7042, 30, 198, 198), "length")
    assert found.logprobs == (-0.2692539393901825, -0.3885854184627533, -0.9825373888015747, -0.8482307195663452)
    assert (found.prompt_tokens, found.completion_tokens) == (5, 4)


GENERATED: dict[str, Callable[[Any], object]] = {
    "no finish reason": lambda choice: choice.update(finish_reason=None),
    "aborted": lambda choice: choice.update(finish_reason="abort"),
    "no ids": lambda choice: choice.update(token_ids=None),
    "an id missing": lambda choice: choice["token_ids"].pop(),
    "a logprob missing": lambda choice: choice["logprobs"]["token_logprobs"].pop(),
    "no logprobs": lambda choice: choice.update(logprobs=None),
    "another prompt": lambda choice: choice["prompt_token_ids"].reverse(),
}


@pytest.mark.parametrize("fault", GENERATED)
def test_an_answer_that_is_not_whole_is_a_failed_call(server: Exchanges, fault: str) -> None:
    """Pitfall 12: a missing finish reason must not become "stop"."""
    instead(server, "4-completion-ids-return-ids", lambda reply: GENERATED[fault](reply["choices"][0]))
    assert refusal(server, answered)


# ---- lists of generated tokens


def decoded(client: Client, k: int = 2) -> Any:
    return client.decode(IDS[:5], Sampling(max_tokens=4), k)


def test_decoding_asks_and_reads_as_recorded(server: Exchanges) -> None:
    """Pitfall 31: row i belongs to the generated token i."""
    answer, found = ask(server, decoded)
    [(_, _, body)] = server.asked
    assert (body["logprobs"], body["return_tokens_as_token_ids"], body["return_token_ids"]) == (2, True, True)
    rows = recorded("4-completion-ids-return-ids")["response"]["choices"][0]["logprobs"]["top_logprobs"]
    assert found.token_ids.tolist() == list(answer.token_ids) == [7042, 30, 198, 198]
    assert found.logprobs == pytest.approx(answer.logprobs)
    assert found.top_ids.tolist() == [[7042, 260], [30, 28], [198, 378], [198, 29]]
    assert found.top_logprobs == pytest.approx(np.array([list(row.values()) for row in rows]))


def lists_of(reply: Any) -> list[dict[str, float]]:
    return reply["choices"][0]["logprobs"]["top_logprobs"]


def test_a_token_outside_its_list_is_the_one_entry_too_many(server: Exchanges) -> None:
    """At temperature 1 the sampled token may be in no top-K: the server adds it."""

    def unlikely(reply: Any) -> None:
        lists_of(reply)[1] = {"token_id:30": -9.5, "token_id:28": -0.5, "token_id:7": -1.5}
        reply["choices"][0]["logprobs"]["token_logprobs"][1] = -9.5

    instead(server, "4-completion-ids-return-ids", unlikely)
    _, found = ask(server, decoded)
    assert (found.top_ids[1].tolist(), found.logprobs[1]) == ([28, 7], pytest.approx(-9.5))


DECODED: dict[str, Callable[[Any], object]] = {
    "a list missing": lambda reply: lists_of(reply).pop(),
    "lists of other tokens": lambda reply: lists_of(reply).reverse(),
    "keyed by text": lambda reply: lists_of(reply).__setitem__(0, {" Paris": -0.2, " the": -2.7}),
    "too few entries": lambda reply: lists_of(reply)[0].pop("token_id:260"),
    "too many entries": lambda reply: lists_of(reply)[0].update({"token_id:5": -3.0, "token_id:6": -4.0}),
    "no lists": lambda reply: reply["choices"][0]["logprobs"].update(top_logprobs=None),
}


@pytest.mark.parametrize("fault", DECODED)
def test_lists_that_do_not_belong_to_the_answer_are_no_answer(server: Exchanges, fault: str) -> None:
    instead(server, "4-completion-ids-return-ids", DECODED[fault])
    assert refusal(server, decoded)


def test_longer_lists_than_the_server_gives_are_not_sent(server: Exchanges) -> None:
    said = refusal(server, lambda client: decoded(client, 21), max_logprobs=20)
    assert said == "top-K 21 is above the 20 that this server gives; lower it"
    said = refusal(server, lambda client: client.decode(IDS, Sampling(max_tokens=FULL_ROWS + 1), -1))
    assert said.endswith(f"; {FULL_ROWS} at most, or the server dies")
    assert server.asked == []


def test_max_tokens_below_one_is_told_and_not_tried_again(server: Exchanges) -> None:
    instead(server, "4-completion-max0", lambda _: None)
    server.exchanges[0]["request"] |= {"return_token_ids": True}
    said = refusal(server, lambda client: client.generate(IDS[:5], Sampling(max_tokens=0)))
    assert "max_tokens must be at least 1, got 0." in said
    assert len(server.asked) == 1


# ---- tokens, names, readiness


def test_tokens_of_a_text_and_of_a_conversation(server: Exchanges) -> None:
    text = recorded("7-tokenize-text")
    assert ask(server, lambda client: client.tokenize(text["request"]["prompt"])) == tuple(text["response"]["tokens"])
    assert server.asked.pop()[2] == {
        "model": "smollm2-135m",
        "prompt": text["request"]["prompt"],
        "add_special_tokens": False,
    }
    chat = recorded("7-tokenize-messages")
    messages = [Message(**message) for message in chat["request"]["messages"]]
    assert ask(server, lambda client: client.tokenize(messages)) == tuple(chat["response"]["tokens"])


def test_tools_and_calls_go_through_the_servers_own_template(server: Exchanges) -> None:
    exchange = recorded("7-tokenize-messages-tools")
    messages, tools = conversation_of(exchange["request"])
    assert ask(server, lambda client: client.tokenize(messages, tools)) == tuple(exchange["response"]["tokens"])
    assert server.asked.pop()[2] == exchange["request"]


def test_the_served_name_is_asked_for_because_another_is_a_404(server: Exchanges) -> None:
    async def name(client: Client) -> str:
        client.model = ""
        await client.served()
        return client.model

    assert ask(server, name) == "smollm2-135m"

    async def nope(client: Client) -> Any:
        client.model = "nope"
        return await client.served()

    assert refusal(server, nope) == "it does not serve 'nope'; name one of /v1/models"


def test_readiness_is_health(server: Exchanges) -> None:
    assert ask(server, lambda client: client.ready())
    server.exchanges = [{**recorded("1-health"), "status": 503}]
    assert not ask(server, lambda client: client.ready())


# ---- the adapter


def test_the_command_line_of_the_defaults_leaves_nothing_to_the_checkpoint(tmp_path: Path) -> None:
    assert engine_of("vllm", tmp_path, {}).arguments(7) == [
        *("--model", str(tmp_path / "model"), "--host", "127.0.0.1", "--port", "7"),
        *("--generation-config", "vllm", "--logprobs-mode", "raw_logprobs"),
        "--enable-prompt-tokens-details",
        *("--dtype", "bfloat16", "--kv-cache-dtype", "bfloat16", "--tensor-parallel-size", "1"),
        *("--max-logprobs", "-1", "--seed", "0"),
    ]
    words = engine_of("vllm", tmp_path, {}, parsers={"tool_call_parser": "hermes"}).arguments(7)
    assert "--enable-auto-tool-choice" in words


def test_capabilities_go_as_far_as_the_limit_of_logprobs(tmp_path: Path) -> None:
    def able(limit: int) -> Capabilities:
        return Vllm.able(engine_of("vllm", tmp_path, {}, numerics={"max_logprobs": limit}).options)

    assert [able(limit).top_logprobs for limit in (-1, 20, 5000)] == [-1, 20, LONGEST_LIST]


def test_what_it_is_is_read_from_the_server_the_log_and_the_checkpoint(tmp_path: Path) -> None:
    async def look(engine: Any) -> Any:
        return await engine.fingerprint(), await engine.capacity(), await engine.inventory(), engine.client.model

    fingerprint, capacity, inventory, model = carry(serving("vllm", tmp_path), look)
    assert (fingerprint.engine, fingerprint.version, fingerprint.weights) == ("vllm", "0.32.0", "bf16")
    assert fingerprint.kv_cache == "", "the recorded server was started with `auto`: it does not tell"
    assert fingerprint.flags["enforce_eager"] == "True"
    assert capacity == Capacity(kv_tokens=46592, kv_bytes_per_token=2**30 / 46592)
    assert (inventory.kv_scales, inventory.checkpoint_bytes) == ("none", 128)
    assert inventory.numerics["dtype"] == "torch.bfloat16"
    assert model == "smollm2-135m"


@pytest.mark.parametrize(
    ("name", "kv_cache", "capacity"),
    [
        ("8-pressure-metrics", "fp8_e4m3", Capacity(kv_tokens=2112)),
        ("8-kv-nvfp4-on-cpu-metrics", "nvfp4", Capacity(kv_tokens=93184, kv_bytes_per_token=2**30 / 93184)),
    ],
)
def test_the_kv_cache_is_read_from_the_labels_of_its_metric(
    server: Exchanges, name: str, kv_cache: str, capacity: Capacity, tmp_path: Path
) -> None:
    server.exchanges = [recorded(name)]
    engine = engine_of("vllm", tmp_path, {})
    engine._cache = ask(server, lambda client: client.cache_info())
    assert asyncio.run(engine.fingerprint()).kv_cache == kv_cache
    assert asyncio.run(engine.capacity()) == capacity


def test_the_engine_s_own_words_on_scales_are_kept(tmp_path: Path) -> None:
    env = {
        "FAKE_WIRE": str(WIRE / "vllm"),
        "FAKE_LOG": str(WIRE / "logs" / "vllm" / "start_kv_nvfp4_accepted_but_broken.txt"),
    }

    async def look(engine: Any) -> Any:
        return (await engine.inventory()).warnings

    [said] = carry(engine_of("vllm", tmp_path, env), look)
    assert said.startswith("Using nvfp4 data type to store kv cache.")


def test_it_tokenises_answers_and_scores_through_the_recorded_server(tmp_path: Path) -> None:
    async def use(engine: Any) -> Any:
        return (
            await engine.tokenize("The capital of France is Paris."),
            await engine.generate(IDS[:5], Sampling(max_tokens=4)),
            await engine.score(IDS, 1, 5),
        )

    text, answer, scoring = carry(serving("vllm", tmp_path), use)
    assert (list(text), answer.token_ids, scoring.token_ids.tolist()) == (IDS, (7042, 30, 198, 198), IDS[1:])
