"""The client of SGLang's dialect against what SGLang 0.5.23 answered (`wire/`, recorded), and against what a server may do wrong."""

import asyncio
import base64
import copy
import json
import threading
from collections.abc import Awaitable, Callable, Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from toys.recorded_tools import conversation_of

from evalrig.engine import Penalties, Sampling
from evalrig.errors import EngineError
from evalrig.sglang_wire import Client
from evalrig.types import Message
from evalrig.wire import RETRIES

WIRE = Path(__file__).parent / "wire"
IDS = [504, 3575, 282, 4649, 314, 7042, 30]
CLOSE = "close the connection"


def recorded(name: str) -> Any:
    return json.loads((WIRE / f"{name}.json").read_text())


class Server(ThreadingHTTPServer):
    """Answers from a list, in order, and keeps what it was asked; the last answer repeats."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[Any] = []
        self.asked: list[tuple[str, str, Any]] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server  # type: ignore[assignment]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.asked.append((self.command, self.path, json.loads(body) if body else None))
        answers = self.server.answers
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer == CLOSE:
            self.close_connection = True
            return
        status, content = answer
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Generator[Server]:
    monkeypatch.setattr("evalrig.wire.PAUSES", (0.0, 0.0))
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join(10)


def ask(server: Server, call: Callable[[Client], Awaitable[Any]], vocabulary: int = 49152) -> Any:
    async def go() -> Any:
        client = Client("arm", f"http://127.0.0.1:{server.server_port}", 10)
        client.vocabulary = vocabulary
        try:
            return await call(client)
        finally:
            await client.close()

    return asyncio.run(asyncio.wait_for(go(), 30))


def score(server: Server, *answers: Any, start: int = 1, top_k: int = 5) -> Any:
    server.answers = list(answers)
    return ask(server, lambda client: client.score(IDS, start, top_k))


def generate(server: Server, *answers: Any, **sampling: Any) -> Any:
    server.answers = list(answers)
    return ask(server, lambda client: client.generate(IDS[:5], Sampling(max_tokens=4, **sampling)))


def refusal(call: Callable[..., Any], *arguments: Any, **more: Any) -> str:
    with pytest.raises(EngineError) as caught:
        call(*arguments, **more)
    text = str(caught.value)
    assert text.startswith("arm: ")
    assert "\n" not in text
    return text.removeprefix("arm: ")


def changed(name: str, change: Callable[[Any], object]) -> tuple[int, Any]:
    """A recorded answer with something done to it."""
    answer = copy.deepcopy(recorded(name)["response"])
    change(answer)
    return 200, answer


def answer(name: str) -> tuple[int, Any]:
    return recorded(name)["status"], recorded(name)["response"]


# ---- what was recorded


def test_scoring_asks_and_reads_as_recorded(server: Server) -> None:
    """Pitfall 31, off-by-one: row i belongs to token i, not to the one before."""
    found = score(server, answer("5-score-flat-b64"))
    assert server.asked == [("POST", "/generate", recorded("5-score-flat-b64")["request"])]
    rows = recorded("5-score-flat-b64")["response"]["meta_info"]["input_token_logprobs"]
    assert found.token_ids.tolist() == IDS[1:] == [row[1] for row in rows[1:]]
    assert found.logprobs.tolist() == np.array([row[0] for row in rows[1:]], np.float32).tolist()
    assert (found.top_ids.shape, found.top_logprobs.shape) == ((6, 5), (6, 5))
    listed = found.top_ids == found.token_ids[:, None]
    assert listed.any(1).tolist() == [False, True, True, True, True, True]
    assert found.top_logprobs[listed] == pytest.approx(found.logprobs[1:])


def flat(name: str) -> tuple[int, Any]:
    """A recorded answer with nested top lists, in the flat form in which the client asks for them; computed cold."""

    def change(reply: Any) -> None:
        meta = reply["meta_info"]
        meta["cached_tokens"] = 0
        rows = meta.pop("input_top_logprobs")[1:]
        values = np.array([[entry[0] for entry in row] for row in rows], "<f4")
        ids = np.array([[entry[1] for entry in row] for row in rows], "<i4")
        meta["input_top_logprobs_val_flat_b64"] = base64.b64encode(values.tobytes()).decode()
        meta["input_top_logprobs_idx_flat_b64"] = base64.b64encode(ids.tobytes()).decode()
        meta["input_top_logprobs_shape"] = list(values.shape)
        meta["input_top_logprobs_null_prefix"] = 1

    return changed(name, change)


def test_scoring_from_the_middle_starts_one_before_because_that_row_is_always_null(server: Server) -> None:
    found = score(server, flat("5-score-start3"), start=4, top_k=3)
    [(_, _, body)] = server.asked
    request = recorded("5-score-start3")["request"]
    assert {key: body[key] for key in request} == request
    assert body["logprob_start_len"] == 3
    assert found.token_ids.tolist() == IDS[4:]
    assert (
        found.logprobs.tolist()
        == np.array([-0.44537609815597534, -0.2714426815509796, -0.4048488438129425], np.float32).tolist()
    )
    assert found.top_ids[:, 0].tolist() == IDS[4:]
    assert found.top_logprobs[:, 0].tolist() == found.logprobs.tolist()


def test_a_cold_scoring_from_the_middle_has_a_key_of_its_own_so_that_it_finds_no_prefix(server: Server) -> None:
    for _ in range(2):
        score(server, flat("5-score-start3"), start=4, top_k=3)
    keys = [body.get("extra_key") for _, _, body in server.asked]
    assert len(set(keys)) == 2
    assert all(keys)
    score(server, answer("5-score-flat-b64"))
    assert "extra_key" not in server.asked[-1][2], "from the first token on nothing is read from the cache anyway"


def test_a_server_that_knows_no_keys_is_asked_for_all_positions(server: Server) -> None:
    """With a start in the middle SGLang reads what it has kept: 3 of 7 tokens in the recording."""
    assert recorded("5-score-start3")["response"]["meta_info"]["cached_tokens"] == 3
    server.answers = [answer("5-score-start3"), answer("5-score-no-top"), answer("5-score-no-top")]

    async def twice(client: Client) -> Any:
        return await client.score(IDS, 4, 0), await client.score(IDS, 4, 0)

    first, second = ask(server, twice)
    assert [body["logprob_start_len"] for _, _, body in server.asked] == [3, 0, 0]
    rows = recorded("5-score-no-top")["response"]["meta_info"]["input_token_logprobs"]
    for found in (first, second):
        assert found.token_ids.tolist() == IDS[4:]
        assert found.logprobs.tolist() == np.array([row[0] for row in rows[4:]], np.float32).tolist()
        assert found.top_ids.shape == (3, 0)


def test_a_cold_scoring_that_was_read_from_the_cache_all_the_same_is_no_scoring(server: Server) -> None:
    warm = changed("5-score-no-top", lambda reply: reply["meta_info"].update(cached_tokens=5))
    text = refusal(score, server, warm, top_k=0)
    assert text == "5 tokens came from the prefix cache although all were to be computed"


def test_the_recorded_server_computes_all_when_asked_from_the_first_token(server: Server) -> None:
    """The same prompt was in its cache: `5-score-prefix-warm` has 250 tokens from there."""
    ids = recorded("5-score-prefix-warm-start0")["request"]["input_ids"]
    server.answers = [answer("5-score-prefix-warm-start0")]
    found = ask(server, lambda client: client.score(ids, 1, 0))
    assert len(found.logprobs) == 255


# ---- over a prefix from the cache


def cached_server(
    server: Server, monkeypatch: pytest.MonkeyPatch, page: int, cached: Callable[[int, bool], int]
) -> Any:
    """Answers scorings of ids 0, 1, 2 ... by formula; `cached` says how many tokens, by start and by key, came from the cache."""
    calls: list[tuple[Any, ...]] = []

    async def call(client: Client, method: str, path: str, body: Any) -> tuple[Any, int]:
        n, first = len(body["input_ids"]), body.get("logprob_start_len")
        if first is None:
            calls.append(("prefill", n))
            return {}, 0
        calls.append(("cold" if "extra_key" in body or not first else "warm", n, first))
        rows = [[None if i == first else -i / 100, i, None] for i in range(first, n)]
        told = cached(first, "extra_key" in body)
        meta = {
            "input_token_logprobs": rows,
            "prompt_tokens": n,
            "cached_tokens": told,
            "finish_reason": {"type": "length"},
        }
        return {"text": "", "output_ids": [], "meta_info": meta}, 0

    monkeypatch.setattr(Client, "call", call)
    monkeypatch.setattr(Client, "page", page)
    return calls


@pytest.mark.parametrize(
    ("length", "start", "page", "calls"),
    [
        (100, 60, 1, [("prefill", 59), ("warm", 100, 59)]),
        (100, 1, 1, [("prefill", 1), ("cold", 2, 0), ("warm", 100, 1)]),
        (100, 1, 16, [("prefill", 31), ("cold", 32, 0), ("warm", 100, 31)]),
        (100, 5, 16, [("prefill", 31), ("cold", 32, 4), ("warm", 100, 31)]),
        (2, 1, 1, [("cold", 2, 0)]),
        (300, 200, 64, [("prefill", 199), ("warm", 300, 199)]),
    ],
)
def test_the_prefix_is_filled_first_and_must_then_come_from_the_cache(
    server: Server, monkeypatch: pytest.MonkeyPatch, length: int, start: int, page: int, calls: Any
) -> None:
    def kept(first: int, keyed: bool) -> int:
        return 0 if keyed else first // page * page

    seen = cached_server(server, monkeypatch, page, kept)
    found = ask(server, lambda client: client.score_cached(list(range(length)), start, 0))
    assert seen == calls
    assert found.token_ids.tolist() == list(range(start, length))
    assert found.logprobs == pytest.approx([-i / 100 for i in range(start, length)])


def test_a_prefix_that_did_not_come_from_the_cache_is_another_measurement(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached_server(server, monkeypatch, 16, lambda first, keyed: 0)
    text = refusal(ask, server, lambda client: client.score_cached(list(range(100)), 80, 0))
    assert text == "0 tokens came from the prefix cache where 63 should have"


@pytest.mark.parametrize("name", ["5-score-prefix-warm", "5-score-prefix-cold"])
def test_what_came_from_the_cache_is_read_as_recorded(server: Server, name: str) -> None:
    server.answers = [(200, {}), answer(name)]
    ids = recorded(name)["request"]["input_ids"]

    def call(client: Client) -> Any:
        return client.score_cached(ids, 251, 0)

    if name.endswith("warm"):
        assert len(ask(server, call).logprobs) == 5
        assert server.asked[1][2]["logprob_start_len"] == 250
    else:
        assert refusal(ask, server, call) == "0 tokens came from the prefix cache where 249 should have"


# ---- lists of generated tokens


def decode(server: Server, *answers: Any, top_k: int = 5, ids: list[int] = IDS, **sampling: Any) -> Any:
    server.answers = list(answers)
    return ask(server, lambda client: client.decode(ids, Sampling(max_tokens=2, **sampling), top_k))


def test_decoding_asks_and_reads_as_recorded(server: Server) -> None:
    """Pitfall 31: row i of the output belongs to the generated token i; no null row stands before it."""
    completion, found = decode(server, answer("5-score-flat-b64-both"))
    [(_, _, body)] = server.asked
    request = recorded("5-score-flat-b64-both")["request"]
    flat = [key for key in request if key not in ("sampling_params", "logprob_start_len")]
    assert {key: body[key] for key in flat} == {key: request[key] for key in flat}
    assert (completion.token_ids, completion.finish) == ((198, 198), "length")
    assert found.token_ids.tolist() == [198, 198]
    assert found.logprobs == pytest.approx([-1.0084458589553833, -0.9083191156387329])
    assert found.top_ids.tolist() == [[198, 378, 7042, 2, 669], [198, 29, 26, 504, 38634]]
    assert found.top_logprobs[:, 0] == pytest.approx(found.logprobs)
    assert (np.diff(found.top_logprobs) <= 0).all()


def test_decoding_reads_nested_lists_too(server: Server) -> None:
    """As servers answer that know no flat form of the output."""
    server.answers = [answer("4-generate-ids")]
    _, found = ask(server, lambda client: client.decode(IDS[:5], Sampling(max_tokens=4), 2))
    rows = recorded("4-generate-ids")["response"]["meta_info"]["output_top_logprobs"]
    assert found.top_ids.tolist() == [[entry[1] for entry in row] for row in rows]
    assert found.top_logprobs == pytest.approx(np.array([[entry[0] for entry in row] for row in rows]))


def test_decoding_without_lists(server: Server) -> None:
    completion, found = decode(server, answer("5-score-flat-b64-both"), top_k=0)
    assert (found.top_ids.shape, found.logprobs.tolist()) == ((2, 0), pytest.approx(completion.logprobs))


DECODED: dict[str, Callable[[Any], object]] = {
    "a list missing": lambda meta: meta.update(output_top_logprobs_shape=[1, 5]),
    "a null row before": lambda meta: meta.update(output_top_logprobs_null_prefix=1),
    "lists of the prompt only": lambda meta: meta.pop("output_top_logprobs_shape"),
    "cut base64": lambda meta: meta.update(output_top_logprobs_val_flat_b64="InNXvw=="),
    "of other tokens": lambda meta: meta["output_token_logprobs"][0].__setitem__(1, 5),
    "a row too many": lambda meta: meta["output_token_logprobs"].append([-1.0, 198, None]),
    "aborted": lambda meta: meta.update(finish_reason={"type": "abort"}),
}


@pytest.mark.parametrize("fault", DECODED)
def test_lists_that_do_not_belong_to_the_answer_are_no_answer(server: Server, fault: str) -> None:
    assert refusal(decode, server, changed("5-score-flat-b64-both", lambda reply: DECODED[fault](reply["meta_info"])))


def test_a_null_logprob_of_a_generated_token_is_nan_and_found_by_preflight(server: Server) -> None:
    broken = changed(
        "5-score-flat-b64-both", lambda reply: reply["meta_info"]["output_token_logprobs"][1].__setitem__(0, None)
    )
    assert np.isnan(decode(server, broken)[1].logprobs).tolist() == [False, True]


def test_more_than_a_split_gives_is_not_sent_because_its_prefill_server_dies_of_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, "longest_list", 128)
    assert (
        refusal(decode, server, answer("4-generate-ids"), top_k=129)
        == "top-K 129 is above the 128 that it gives; lower it"
    )
    said = refusal(decode, server, answer("4-generate-ids"), top_k=-1)
    assert said == "top-K 49152 is above the 128 that it gives; lower it"
    assert server.asked == []


def test_scoring_without_lists(server: Server) -> None:
    found = score(server, answer("5-score-no-top"), top_k=0)
    [(_, _, body)] = server.asked
    assert {key: value for key, value in body.items() if value is not False and key != "top_logprobs_num"} == {
        key: value for key, value in recorded("5-score-no-top")["request"].items() if value is not False
    }
    assert (found.top_ids.shape, len(found.logprobs)) == ((6, 0), 6)


def test_the_whole_vocabulary_is_asked_for_by_its_size(server: Server) -> None:
    values = np.log(np.full((6, 8), 1 / 8, "<f4"))
    ids = np.tile(np.arange(8, dtype="<i4"), (6, 1))

    def change(reply: Any) -> None:
        meta = reply["meta_info"]
        meta["input_top_logprobs_val_flat_b64"] = base64.b64encode(values.tobytes()).decode()
        meta["input_top_logprobs_idx_flat_b64"] = base64.b64encode(ids.tobytes()).decode()
        meta["input_top_logprobs_shape"] = [6, 8]
        meta["input_token_logprobs"] = [[None if n == 0 else -2.0, n, None] for n in range(7)]

    server.answers = [changed("5-score-flat-b64", change)]
    found = ask(server, lambda client: client.score(list(range(7)), 1, -1), vocabulary=8)
    assert server.asked[0][2]["top_logprobs_num"] == 8
    assert np.exp(found.top_logprobs).sum(1) == pytest.approx(1)


def test_generating_asks_and_reads_as_recorded(server: Server) -> None:
    found = generate(server, answer("4-generate-ids"))
    [(method, path, body)] = server.asked
    assert (method, path) == ("POST", "/generate")
    assert body == {
        "input_ids": recorded("4-generate-ids")["request"]["input_ids"],
        "sampling_params": {
            **{"temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "max_new_tokens": 4},
            **{"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0},
        },
        "return_logprob": True,
    }
    assert (found.text, found.token_ids, found.finish) == (" Paris.\n\n", (7042, 30, 198, 198), "length")
    assert (found.prompt_tokens, found.completion_tokens, found.retries) == (5, 4, 0)
    assert found.logprobs == (-0.2714327871799469, -0.39342132210731506, -1.020167589187622, -0.9083191156387329)


def test_a_stop_and_a_seed_are_sent_under_the_names_that_sglang_knows(server: Server) -> None:
    def with_logprobs(reply: Any) -> None:
        reply["meta_info"]["output_token_logprobs"] = [[-0.3, 7042, None], [-0.4, 30, None]]

    found = generate(server, changed("4-generate-stop", with_logprobs), stop=(".",), seed=7, temperature=1.0)
    params = server.asked[0][2]["sampling_params"]
    assert (params["stop"], params["sampling_seed"], params["temperature"]) == (["."], 7, 1.0)
    assert (found.text, found.token_ids, found.finish) == (" Paris", (7042, 30), "stop")


def test_penalties_and_min_p_are_sent_as_asked_for(server: Server) -> None:
    """They were left out without a word, and so were the suite's, whatever it asked for."""
    generate(server, answer("4-generate-ids"), min_p=0.1, penalties=Penalties(presence=0.2, repetition=1.1))
    params = server.asked[0][2]["sampling_params"]
    assert (params["min_p"], params["presence_penalty"], params["frequency_penalty"]) == (0.1, 0.2, 0.0)
    assert params["repetition_penalty"] == 1.1


def test_each_token_has_its_own_text_special_ones_included(server: Server) -> None:
    server.answers = [(200, {"text": ["<|im_start|>", "The", "<|im_end|>"]})]
    assert ask(server, lambda client: client.pieces((1, 504, 2))) == ("<|im_start|>", "The", "<|im_end|>")
    assert server.asked.pop() == ("POST", "/detokenize", {"tokens": [[1], [504], [2]], "skip_special_tokens": False})
    server.answers = [(200, {"text": ["The"]})]
    with pytest.raises(EngineError, match="1 texts for 2 tokens"):
        ask(server, lambda client: client.pieces((504, 2)))
    server.answers = [(200, {"text": "Th"})]
    with pytest.raises(EngineError, match="2 texts for 2 tokens"):
        ask(server, lambda client: client.pieces((504, 2)))


def test_tokenizing_a_text_and_a_conversation(server: Server) -> None:
    server.answers = [answer("7-tokenize-text")]
    text = recorded("7-tokenize-text")["request"]["prompt"]
    assert ask(server, lambda client: client.tokenize(text)) == tuple(IDS)
    assert server.asked.pop() == ("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})
    server.answers = [answer("7-tokenize-messages")]
    [message] = recorded("7-tokenize-messages")["request"]["messages"]
    ids = ask(server, lambda client: client.tokenize([Message(**message)]))
    assert ids == tuple(recorded("7-tokenize-messages")["response"]["tokens"])
    assert server.asked.pop() == ("POST", "/tokenize", {"messages": [message]})


def test_tools_and_calls_go_through_the_servers_own_template(server: Server) -> None:
    exchange = recorded("7-tokenize-messages-tools")
    messages, tools = conversation_of(exchange["request"])
    server.answers = [answer("7-tokenize-messages-tools")]
    assert ask(server, lambda client: client.tokenize(messages, tools)) == tuple(exchange["response"]["tokens"])
    wanted = {key: exchange["request"][key] for key in ("messages", "tools")}
    assert server.asked.pop() == ("POST", "/tokenize", wanted)
    ask(server, lambda client: client.tokenize(messages, tools, answer=False))
    assert server.asked.pop() == ("POST", "/tokenize", {**wanted, "add_generation_prompt": False})


def test_readiness(server: Server) -> None:
    server.answers = [(503, b""), (200, b"")]
    assert not ask(server, lambda client: client.ready())
    assert ask(server, lambda client: client.ready())
    server.answers = [CLOSE]
    assert not ask(server, lambda client: client.ready())


# ---- what a server may do wrong


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("6-generate-negative-max", "max_new_tokens must be at least 0"),
        ("6-generate-too-long", "is longer than the model's context length"),
        ("6-generate-oov-token-ids-logprob", "out-of-vocabulary token id 999999"),
        ("6-generate-malformed", "JSON decode error"),
        ("7-tokenize-neither", "Exactly one of 'prompt' or 'messages'"),
    ],
)
def test_a_4xx_is_told_and_not_tried_again(server: Server, name: str, said: str) -> None:
    text = refusal(generate, server, answer(name))
    assert text.startswith("/generate failed: HTTP 400 ")
    assert said in text
    assert len(server.asked) == 1


def test_an_unknown_path_is_told(server: Server) -> None:
    server.answers = [answer("6-wrong-path")]
    assert refusal(ask, server, lambda client: client.info("/nope")) == '/nope failed: HTTP 404 {"detail": "Not Found"}'


@pytest.mark.parametrize("fault", [(503, b""), (500, b"oops"), (429, b"later"), CLOSE])
def test_a_passing_fault_is_tried_again_and_counted(server: Server, fault: Any) -> None:
    found = generate(server, fault, answer("4-generate-ids"))
    assert (found.retries, found.finish) == (1, "length")
    assert server.asked[0] == server.asked[1], "retries are identical"


@pytest.mark.parametrize(
    ("fault", "said"), [((503, b"busy\nhere"), "HTTP 503 busy here"), (CLOSE, "RemoteProtocolError")]
)
def test_exhausted_retries_are_a_failed_call_and_never_an_empty_answer(server: Server, fault: Any, said: str) -> None:
    """Pitfall 11."""
    text = refusal(generate, server, fault)
    assert text.startswith(f"/generate failed: {said}")
    assert len(server.asked) == RETRIES + 1


def test_200_with_an_error_inside_is_no_answer(server: Server) -> None:
    text = refusal(generate, server, (200, {"error": {"message": "out of memory"}}))
    assert text == "/generate answered 200 with an error: {'message': 'out of memory'}"


@pytest.mark.parametrize("body", [b"", b"<html>busy</html>", b'{"text": "cut'])
def test_what_is_no_json_is_no_answer(server: Server, body: bytes) -> None:
    assert refusal(generate, server, (200, body)).startswith("/generate did not answer JSON: ")


@pytest.mark.parametrize(
    "body", [[], "text", None, {}, {"text": "x"}, {"text": "x", "meta_info": None}, {"meta_info": {}}]
)
def test_another_shape_is_no_answer(server: Server, body: Any) -> None:
    for call in (generate, score):
        assert refusal(call, server, (200, body))


@pytest.mark.parametrize("finish", [None, {}, {"type": "abort", "message": "KV pool"}, {"type": "unknown"}])
def test_an_answer_without_an_end_is_a_failed_call(server: Server, finish: Any) -> None:
    """Pitfall 12: a missing finish reason must not become "stop"."""
    text = refusal(
        generate, server, changed("4-generate-ids", lambda reply: reply["meta_info"].update(finish_reason=finish))
    )
    word = (finish or {}).get("type", "no")
    assert text == f"an answer ended with {word} finish reason; counted as a failed call"


def test_an_aborted_scoring_is_a_failed_call(server: Server) -> None:
    aborted = changed("5-score-flat-b64", lambda reply: reply["meta_info"].update(finish_reason={"type": "abort"}))
    assert refusal(score, server, aborted) == "a scoring was aborted; counted as a failed call"


GENERATED: dict[str, Callable[[Any], object]] = {
    "a logprob missing": lambda reply: reply["meta_info"]["output_token_logprobs"].pop(),
    "no logprobs": lambda reply: reply["meta_info"].update(output_token_logprobs=[]),
    "of other tokens": lambda reply: reply["meta_info"]["output_token_logprobs"][0].__setitem__(1, 5),
    "another prompt": lambda reply: reply["meta_info"].update(prompt_tokens=6),
    "a null logprob": lambda reply: reply["meta_info"]["output_token_logprobs"][0].__setitem__(0, None),
    "a token missing": lambda reply: reply["output_ids"].pop(),
}


@pytest.mark.parametrize("fault", GENERATED)
def test_logprobs_that_do_not_belong_to_the_answer_are_no_answer(server: Server, fault: str) -> None:
    assert refusal(generate, server, changed("4-generate-ids", GENERATED[fault]))


def rows_of(reply: Any) -> list[Any]:
    return reply["meta_info"]["input_token_logprobs"]


SCORED: dict[str, Callable[[Any], object]] = {
    "a row missing at the end": lambda reply: rows_of(reply).pop(),
    "a row missing at the front": lambda reply: rows_of(reply).pop(0),
    "no rows": lambda reply: rows_of(reply).clear(),
    "other tokens": lambda reply: rows_of(reply)[3].__setitem__(1, 5),
    "another prompt": lambda reply: reply["meta_info"].update(prompt_tokens=8),
    "too few lists": lambda reply: reply["meta_info"].update(input_top_logprobs_shape=[5, 5]),
    "a smaller K": lambda reply: reply["meta_info"].update(input_top_logprobs_shape=[6, 4]),
    "no null row": lambda reply: reply["meta_info"].update(input_top_logprobs_null_prefix=0),
    "cut base64": lambda reply: reply["meta_info"].update(input_top_logprobs_val_flat_b64="InNXvw=="),
    "bad base64": lambda reply: reply["meta_info"].update(input_top_logprobs_val_flat_b64="I"),
    "no lists": lambda reply: reply["meta_info"].pop("input_top_logprobs_val_flat_b64"),
}


@pytest.mark.parametrize("fault", SCORED)
def test_rows_that_are_not_those_asked_for_are_no_scoring(server: Server, fault: str) -> None:
    assert refusal(score, server, changed("5-score-flat-b64", SCORED[fault]))


def test_a_null_logprob_is_nan_and_found_by_preflight_and_validity(server: Server) -> None:
    found = score(server, changed("5-score-flat-b64", lambda reply: rows_of(reply)[2].__setitem__(0, None)))
    assert np.isnan(found.logprobs).tolist() == [False, True, False, False, False, False]


# ---- what is never sent


@pytest.mark.parametrize("ids", [[504, 999999], [504, -1], [49152, 1]])
def test_ids_outside_the_vocabulary_are_not_sent_because_sglang_dies_of_them(server: Server, ids: list[int]) -> None:
    server.answers = [answer("4-generate-ids")]
    for call in (
        lambda client: client.generate(ids, Sampling(max_tokens=1)),
        lambda client: client.score(ids, 1, 5),
    ):
        assert refusal(ask, server, call) == "a token id lies outside the vocabulary of 49152; it was not sent"
    assert server.asked == []


def test_a_top_k_above_the_vocabulary_is_not_sent_because_sglang_dies_of_it(server: Server) -> None:
    text = refusal(score, server, answer("5-score-flat-b64"), top_k=60000)
    assert text == "top-K 60000 is above the vocabulary of 49152; lower it"
    assert server.asked == []


def test_the_whole_of_an_unknown_vocabulary_is_not_asked_for(server: Server) -> None:
    text = refusal(ask, server, lambda client: client.score(IDS, 1, -1), vocabulary=0)
    assert text == "the whole vocabulary was asked for, and its size is not known"
    assert server.asked == []


def test_a_start_that_leaves_nothing_to_score_is_a_bug_of_ours(server: Server) -> None:
    for start in (0, 7):
        with pytest.raises(ValueError, match=r"outside 1\.\.6"):
            score(server, answer("5-score-flat-b64"), start=start)


# ---- hostile text


def test_half_a_surrogate_pair_in_an_answer_can_be_filed(server: Server) -> None:
    found = generate(server, changed("4-generate-ids", lambda reply: reply.update(text="a\ud800b \ud83d\ude00")))
    assert found.text == "a\N{REPLACEMENT CHARACTER}b 😀"
    assert msgspec.json.encode(found)


def test_what_a_reply_says_cannot_command_a_terminal(server: Server) -> None:
    said = refusal(generate, server, (400, b"\x1b]0;owned\x07 \x1b[2J\nverdict: GO"))
    assert said.isprintable()
    assert "owned" in said
