"""The client of llama.cpp's dialect against what build 11549 answered (recorded), and against what a server may do wrong."""

import asyncio
import copy
import json
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys.loopback import CLOSE, CUT, Server, serving
from toys.recorded_tools import conversation_of

from evalrig.engine import Penalties, Sampling
from evalrig.errors import EngineError
from evalrig.llama_cpp import said
from evalrig.llama_cpp.forced import Forcing
from evalrig.llama_cpp.wire import UNTOUCHED, Client
from evalrig.types import Message
from evalrig.wire import RETRIES

WIRE = Path(__file__).parent / "wire" / "llamacpp"
PROMPT = [504, 3575, 282, 4649, 314]
GIVEN = [7042, 30, 198, 198]
TEXTS = {7042: " Paris", 30: ".", 198: "\n", 17097: " \N{REPLACEMENT CHARACTER}"}


def recorded(name: str) -> Any:
    return json.loads((WIRE / f"{name}.json").read_text())


def answer(name: str, change: Callable[[Any], object] | None = None) -> tuple[int, Any]:
    exchange = copy.deepcopy(recorded(name))
    if change:
        change(exchange["response"])
    return exchange["status"], exchange["response"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Generator[Server]:
    monkeypatch.setattr("evalrig.wire.PAUSES", (0.0, 0.0))
    with serving() as running:
        yield running


def ask(server: Server, call: Callable[[Client], Awaitable[Any]]) -> Any:
    async def go() -> Any:
        client = Client("arm", f"http://127.0.0.1:{server.server_port}", 10, 4)
        client.vocabulary, client.context = 49152, 2048
        try:
            return await call(client)
        finally:
            await client.close()

    return asyncio.run(asyncio.wait_for(go(), 30))


def score(server: Server, *answers: Any, given: list[int] = GIVEN, top_k: int = 3) -> Any:
    server.answers["/completion"] = list(answers)
    looked = sorted(set(given) - {2})
    server.answers["/detokenize"] = [(200, {"content": TEXTS[token]}) for token in looked]
    return ask(server, lambda client: Forcing(client, frozenset({2}), 80).score([*PROMPT, *given], len(PROMPT), top_k))


def _sampling(max_tokens: int = 4, **more: Any) -> Sampling:
    return Sampling(max_tokens=max_tokens, **more)


def generate(server: Server, *answers: Any, **sampling: Any) -> Any:
    server.answers["/completion"] = list(answers)
    return ask(server, lambda client: client.generate(PROMPT, _sampling(**sampling)))


def refusal(call: Callable[..., Any], *arguments: Any, **more: Any) -> str:
    with pytest.raises(EngineError) as caught:
        call(*arguments, **more)
    text = str(caught.value)
    assert text.startswith("arm: ")
    assert "\n" not in text
    return text.removeprefix("arm: ")


# ---- what was recorded


def test_scoring_forces_the_given_tokens_and_reads_their_rows(server: Server) -> None:
    """Pitfalls 26 and 31: nothing is asked of `echo`, and row i belongs to the token i that was answered."""
    found = score(server, answer("4-native-ids-probs"))
    [body] = server.bodies("/completion")
    assert body["grammar"] == "root ::= <[7042]> <[30]> <[198]> <[198]>"
    assert (body["prompt"], body["n_predict"], body["n_probs"]) == (PROMPT, 4, 3)
    assert not {"echo", "prompt_logprobs", "logprobs"} & set(body)
    assert found.token_ids.tolist() == GIVEN
    rows = recorded("4-native-ids-probs")["response"]["completion_probabilities"]
    assert found.logprobs.tolist() == np.array([row["logprob"] for row in rows], np.float32).tolist()
    assert found.top_ids.tolist() == [[entry["id"] for entry in row["top_logprobs"]] for row in rows]


def test_every_request_is_cold_at_temperature_1_and_cuts_nothing(server: Server) -> None:
    """Pitfalls 21 and 25: the server's own defaults are 0.8, top-k 40, top-p 0.95, min-p 0.05."""
    score(server, answer("4-native-ids-probs"))
    [body] = server.bodies("/completion")
    assert {key: body[key] for key in UNTOUCHED} == UNTOUCHED
    assert (body["temperature"], body["top_k"], body["top_p"], body["min_p"]) == (1.0, 0, 1.0, 0.0)
    assert (body["cache_prompt"], body["samplers"]) == (False, ["temperature"])


def test_the_logprob_comes_although_the_token_is_in_no_list(server: Server) -> None:
    def outside(reply: Any) -> None:
        reply["tokens"][0] = reply["completion_probabilities"][0]["id"] = 17
        reply["completion_probabilities"][0]["logprob"] = -9.5

    TEXTS[17] = "!"
    found = score(server, answer("4-native-ids-probs", outside), given=[17, 30, 198, 198])
    assert found.logprobs[0] == -9.5
    assert 17 not in found.top_ids[0]


def test_a_token_that_ends_an_answer_is_forced_last_by_a_bias(server: Server) -> None:
    def ended(reply: Any) -> None:
        reply["tokens"] = [7042, 2]
        reply["completion_probabilities"] = reply["completion_probabilities"][:2]
        reply["completion_probabilities"][1]["id"] = 2
        reply["stop_type"] = "eos"

    def one(reply: Any) -> None:
        reply.update(tokens=[30], tokens_evaluated=7)
        reply["completion_probabilities"] = reply["completion_probabilities"][1:2]

    found = score(server, answer("4-native-ids-probs", ended), answer("4-native-ids-probs", one), given=[7042, 2, 30])
    first, second = server.bodies("/completion")
    assert (first["grammar"], first["logit_bias"], first["n_predict"]) == ("root ::= <[7042]>", [[2, 1000.0]], 2)
    assert (second["prompt"], second["grammar"], second["logit_bias"]) == ([*PROMPT, 7042, 2], "root ::= <[30]>", [])
    assert found.token_ids.tolist() == [7042, 2, 30]


def test_a_piece_of_a_character_is_read_from_the_whole_vocabulary(server: Server) -> None:
    """The server keeps back the row of a token that ends inside a character."""

    def whole(reply: Any) -> None:
        reply["tokens"] = [80]
        row = reply["completion_probabilities"][0]
        row["id"] = 80
        ids = [17097, *(i for i in range(49152) if i != 17097)]
        row["top_logprobs"] = [{"id": i, "logprob": -float(at)} for at, i in enumerate(ids, 2)]

    found = score(server, answer("5-next-token-full-vocab", whole), given=[17097], top_k=2)
    [body] = server.bodies("/completion")
    assert (body["n_probs"], body["logit_bias"]) == (49152, [[80, 1000.0]])
    assert "grammar" not in body
    assert (found.logprobs.tolist(), found.top_ids.tolist()) == ([-2.0], [[17097, 0]])


def test_a_probability_of_zero_and_no_number_at_all(server: Server) -> None:
    def odd(reply: Any) -> None:
        reply["completion_probabilities"][0]["logprob"] = -3.4028234663852886e38
        reply["completion_probabilities"][1]["logprob"] = None

    found = score(server, answer("4-native-ids-probs", odd))
    assert np.isneginf(found.logprobs[0])
    assert np.isnan(found.logprobs[1]), "preflight and the suites name it; here it is only passed on"


def test_generating(server: Server) -> None:
    found = generate(server, answer("4-native-ids-probs"), seed=7, temperature=1.0)
    [body] = server.bodies("/completion")
    assert (body["seed"], body["temperature"], body["samplers"], body["stop"]) == (7, 1.0, ["temperature"], [])
    assert (found.text, found.token_ids, found.finish) == (" Paris.\n\n", tuple(GIVEN), "length")
    assert found.logprobs == (-0.2589161694049835, -0.3951244652271271, -1.0013962984085083, -0.852059543132782)
    assert (found.prompt_tokens, found.completion_tokens, found.retries) == (5, 4, 0)


def test_cuts_are_named_only_where_they_cut(server: Server) -> None:
    generate(server, answer("4-native-ids-probs"), temperature=0.6, top_k=20, top_p=0.95)
    [body] = server.bodies("/completion")
    assert body["samplers"] == ["temperature", "top_k", "top_p"]
    assert (body["top_k"], body["top_p"], body["min_p"]) == (20, 0.95, 0.0)


def test_penalties_and_min_p_are_sent_as_asked_for(server: Server) -> None:
    generate(server, answer("4-native-ids-probs"), min_p=0.1, penalties=Penalties(repetition=1.1))
    [body] = server.bodies("/completion")
    assert body["samplers"] == ["penalties", "temperature", "min_p"]
    assert (body["min_p"], body["repeat_penalty"], body["repeat_last_n"]) == (0.1, 1.1, 65536)


def test_a_stop_string_is_told_natively(server: Server) -> None:
    def with_tokens(reply: Any) -> None:
        reply["tokens"] = [7042, 30]

    found = generate(server, answer("4-native-stop", with_tokens), stop=(".",))
    assert (found.text, found.finish, found.logprobs) == (" Paris", "stop", ())
    assert server.bodies("/completion")[0]["stop"] == ["."]


def test_tokenizing_a_text_and_a_conversation(server: Server) -> None:
    server.answers["/tokenize"] = [answer("7-tokenize-text"), answer("7-tokenize-special")]
    text = recorded("7-tokenize-text")["request"]["content"]
    assert ask(server, lambda client: client.tokenize(text)) == (*PROMPT, 7042, 30)
    server.answers["/apply-template"] = [answer("7-apply-template")]
    [message] = recorded("7-apply-template")["request"]["messages"]
    ids = ask(server, lambda client: client.tokenize([Message(**message)]))
    assert ids == tuple(recorded("7-tokenize-special")["response"]["tokens"])
    assert server.bodies("/apply-template") == [recorded("7-apply-template")["request"]]
    templated = recorded("7-apply-template")["response"]["prompt"]
    assert server.bodies("/tokenize") == [
        {"content": text, "add_special": False, "parse_special": True},
        {"content": templated, "add_special": True, "parse_special": True},
    ]


def test_tools_and_calls_go_through_the_servers_own_template(server: Server) -> None:
    exchange = recorded("7-apply-template-tools")
    messages, tools = conversation_of(exchange["request"])
    server.answers["/apply-template"] = [answer("7-apply-template-tools")]
    server.answers["/tokenize"] = [answer("7-tokenize-special")]
    ask(server, lambda client: client.tokenize(messages, tools))
    assert server.bodies("/apply-template") == [exchange["request"]]
    assert server.bodies("/tokenize")[0]["content"] == exchange["response"]["prompt"]


def test_while_it_loads_every_path_is_503(server: Server) -> None:
    loading = next(c for c in recorded("1-readiness-while-starting")["changes"] if c["status"] == 503)
    server.answers["/health"] = [(503, loading["body_head"].encode()), (200, {"status": "ok"}), CLOSE]
    assert not ask(server, lambda client: client.ready())
    assert ask(server, lambda client: client.ready())
    assert not ask(server, lambda client: client.ready())


# ---- what a server may do wrong


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("6-native-oov-token", "HTTP 400 Prompt contains invalid tokens"),
        ("6-native-too-long", "HTTP 400 request (2500 tokens) exceeds the available context size"),
        ("6-native-no-prompt", "HTTP 400 [json.exception.out_of_range.403] key 'prompt' not found"),
        ("6-wrong-path", "HTTP 404 File Not Found"),
    ],
)
def test_a_4xx_is_told_in_its_own_words_and_not_tried_again(server: Server, name: str, said: str) -> None:
    assert refusal(generate, server, answer(name)).startswith(f"/completion failed: {said}")
    assert len(server.asked) == 1


LOADING = (503, b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}')
CUT_SHORT = (CUT, recorded("4-native-ids-probs")["response"])


@pytest.mark.parametrize("fault", [LOADING, (429, b"later"), (500, {"error": "x"}), CLOSE, CUT_SHORT])
def test_a_passing_fault_is_tried_again_and_counted(server: Server, fault: Any) -> None:
    found = generate(server, fault, answer("4-native-ids-probs"))
    assert (found.retries, found.finish) == (1, "length")
    first, second = server.bodies("/completion")
    assert first == second, "retries are identical"


@pytest.mark.parametrize(
    ("fault", "said"),
    [(LOADING, "HTTP 503 Loading model"), (CLOSE, "RemoteProtocolError"), (CUT_SHORT, "RemoteProtocolError")],
)
def test_exhausted_retries_are_a_failed_call_and_never_an_empty_answer(server: Server, fault: Any, said: str) -> None:
    """Pitfall 11; a reply that just ends, as of a server that was killed, is no answer."""
    for call in (generate, score):
        server.asked.clear()
        assert refusal(call, server, fault).startswith(f"/completion failed: {said}")
        assert len(server.bodies("/completion")) == RETRIES + 1


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"content": "cut', b"[]", b"{}", b"null", b'{"content": 3}'])
def test_another_shape_is_no_answer(server: Server, body: bytes) -> None:
    for call in (generate, score):
        assert refusal(call, server, (200, body)).startswith("/completion answered in an unknown shape: ")


@pytest.mark.parametrize("kind", ["none", "", "abort"])
def test_an_answer_without_an_end_is_a_failed_call(server: Server, kind: str) -> None:
    """Pitfall 12."""
    text = refusal(generate, server, answer("4-native-ids-probs", lambda reply: reply.update(stop_type=kind)))
    assert text == f"an answer ended with {kind or 'no'} finish reason; counted as a failed call"


def test_numbers_out_of_the_prefix_cache_are_refused(server: Server) -> None:
    """Pitfall 21: the recorded warm answer differs from the cold one in the last digits."""

    def short(reply: Any) -> None:
        reply["tokens_evaluated"] = len(PROMPT)

    for call in (generate, score):
        assert "255 prompt tokens came from the prefix cache although it is off" in refusal(
            call, server, answer("5-prefix-warm", short)
        )


FAULTS: dict[str, Callable[[Any], object]] = {
    "a row missing": lambda reply: reply["completion_probabilities"].pop(),
    "no rows": lambda reply: reply.pop("completion_probabilities"),
    "another token": lambda reply: reply["tokens"].__setitem__(1, 5),
    "another row": lambda reply: reply["completion_probabilities"][2].update(id=5),
    "one token": lambda reply: reply.update(tokens=[7042]),
    "another prompt": lambda reply: reply.update(tokens_evaluated=6),
    "cut by the context": lambda reply: reply.update(truncated=True),
    "a shorter list": lambda reply: reply["completion_probabilities"][1]["top_logprobs"].pop(),
    "probabilities": lambda reply: reply["completion_probabilities"][0].update(top_probs=[], top_logprobs=[]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_rows_that_do_not_belong_to_the_given_tokens_are_no_score(server: Server, fault: str) -> None:
    assert refusal(score, server, answer("4-native-ids-probs", FAULTS[fault]))
    assert len(server.bodies("/completion")) == 1


def test_probabilities_after_sampling_are_no_logprobs(server: Server) -> None:
    assert "unknown shape" in refusal(generate, server, answer("4-native-post-sampling"))


# ---- what is never sent


def test_what_the_server_would_take_otherwise_than_meant_is_not_sent(server: Server) -> None:
    """max_tokens 0 answers one token and -1 runs on; ids and K above the vocabulary are refused or cut."""
    for tokens in (0, -1):
        with pytest.raises(ValueError, match=f"max_tokens {tokens}: at least 1"):
            generate(server, answer("4-native-ids-probs"), max_tokens=tokens)
    long = list(range(2048))
    forcing = lambda ids, start, k: lambda client: Forcing(client, frozenset({2}), 80).score(ids, start, k)  # noqa: E731
    assert "outside the vocabulary of 49152" in refusal(ask, server, forcing([504, 99999], 1, 1))
    assert "outside the vocabulary of 49152" in refusal(ask, server, forcing([99999, 504], 1, 1))
    assert "top-K 49153 is above the vocabulary" in refusal(ask, server, forcing([504, 30], 1, 49153))
    assert "2048 tokens do not fit the context of 2048; raise `context_length`" in refusal(
        ask, server, forcing(long, 9, 1)
    )
    assert not server.bodies("/completion")


def test_large_lists_come_in_several_requests(server: Server) -> None:
    """A whole vocabulary is 4.7 MB a token."""

    def whole(reply: Any, at: int) -> None:
        reply["tokens"], reply["tokens_evaluated"] = [198] * min(8, 10 - at), len(PROMPT) + at
        entries = [{"id": i, "logprob": -5.0} for i in range(49152)]
        reply["completion_probabilities"] = [{"id": 198, "logprob": -5.0, "top_logprobs": entries}] * min(8, 10 - at)

    replies = [answer("4-native-ids-probs", lambda reply, at=at: whole(reply, at)) for at in (0, 8)]
    found = score(server, *replies, given=[198] * 10, top_k=-1)
    assert [len(body["prompt"]) for body in server.bodies("/completion")] == [5, 13]
    assert found.top_ids.shape == (10, 49152)


# ---- what the log says


def test_types_and_sizes_are_read_from_the_log() -> None:
    f16 = said.read((WIRE / "kv_f16_capacity.txt").read_text())
    assert (f16.kv_cache, f16.kv_tokens, f16.kv_bytes / f16.kv_tokens) == ("f16", 8192, 23040.0)
    q8 = said.read((WIRE / "kv_q8_0_capacity.txt").read_text())
    assert (q8.kv_cache, q8.kv_tokens, q8.flash_attention) == ("q8_0", 8192, "enabled")
    assert q8.kv_bytes / q8.kv_tokens == pytest.approx(12240, rel=1e-4)
    assert said.read("nothing") == said.Said()


def test_weights_are_what_most_matrices_are_and_unlike_halves_of_the_cache_are_said() -> None:
    lines = "- type  f32:   61 tensors\n- type q4_0:  210 tensors\n- type q8_0:    1 tensors\nEOG token             = 2 '<|im_end|>'\n"
    lines += "llama_kv_cache: size =   1.00 MiB (  1024 cells,   2 layers,  4/1 seqs), K (q8_0):   0.5 MiB, V (f16):   0.5 MiB"
    found = said.read(lines)
    assert (found.weights, found.tensors) == ("q4_0", "f32 61, q4_0 210, q8_0 1")
    assert (found.kv_cache, found.kv_tokens, found.ends) == ("q8_0/f16", 1024, {2})


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("start_bad_model_path", "the model file is missing, cut short or no GGUF file; restore it"),
        ("start_truncated_model", "the model file is missing, cut short or no GGUF file; restore it"),
        ("start_port_in_use", "its port was taken; start again"),
        ("start_unsupported_kv_dtype", "a quantised V cache needs flash attention; set `flash_attn: true`"),
    ],
)
def test_a_failed_start_is_told_by_its_cause(log: str, reason: str) -> None:
    """The last line of the log only says that the parameters should be checked."""
    assert said.why((WIRE / f"{log}.txt").read_text()) == reason
