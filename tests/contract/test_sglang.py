"""The SGLang adapter: its command line, what it reads back from a recorded server and its log, and how it scores."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toys.checkpoints import checkpoint
from toys.launched import IDS, WIRE, carry, engine_of, serving

from evalrig.engine import Sampling
from evalrig.engines.sglang import Sglang, SglangOptions
from evalrig.types import Capacity, Message


def recorded(name: str) -> Any:
    return json.loads((WIRE / f"{name}.json").read_text())


def test_the_command_line_of_the_defaults_leaves_nothing_to_the_checkpoint(tmp_path: Path) -> None:
    engine = engine_of("sglang", tmp_path, {})
    assert engine.arguments(7) == [
        *("--model-path", str(tmp_path / "model"), "--host", "127.0.0.1", "--port", "7", "--enable-metrics"),
        "--enable-cache-report",
        *("--sampling-defaults", "openai", "--dtype", "bfloat16", "--kv-cache-dtype", "bfloat16", "--tp-size", "1"),
        *("--random-seed", "0"),
    ]


def test_every_typed_option_has_its_flag(tmp_path: Path) -> None:
    args: dict[str, Any] = {
        "weights_and_kv": {"dtype": "auto", "quantization": "fp8", "kv_cache_dtype": "fp8_e4m3"},
        "parallel": {"tp": 8, "dp": 2, "ep": 4, "pp": 1},
        "memory": {
            "mem_fraction_static": 0.8,
            "max_total_tokens": 100,
            "context_length": 32,
            "max_running_requests": 4,
        },
        "numerics": {
            "attention_backend": "fa3",
            "deterministic": True,
            "fp32_lm_head": True,
            "disable_radix_cache": True,
        },
        "parsers": {"tool_call_parser": "glm47", "reasoning_parser": "glm45"},
        "extra": ["--trust-remote-code"],
    }
    args["weights_and_kv"]["quantization_param_path"] = "/s.json"
    args["memory"]["chunked_prefill_size"] = 2048
    args["parsers"]["chat_template"] = "/t.jinja"
    words = engine_of("sglang", tmp_path, {}, **args).arguments(7)
    assert {flag for _, _, flag in Sglang.table} <= set(words)
    assert words[-1] == "--trust-remote-code"
    pairs = dict(itertools.pairwise(words))
    assert (pairs["--quantization"], pairs["--ep-size"], pairs["--mem-fraction-static"]) == ("fp8", "4", "0.8")
    assert pairs["--quantization-param-path"] == "/s.json"


def test_a_seed_is_promised_in_deterministic_mode_only(tmp_path: Path) -> None:
    """Without it the same seed gave two answers (wire/INDEX.md)."""
    assert Sglang.able(SglangOptions()) == replace(Sglang.capabilities, seed=False)
    made = engine_of("sglang", tmp_path, {}, numerics={"deterministic": True})
    assert Sglang.able(made.options).seed


def test_what_it_is_is_read_from_the_server_the_log_and_the_checkpoint(tmp_path: Path) -> None:
    async def look(engine: Any) -> Any:
        return await engine.fingerprint(), await engine.capacity(), await engine.inventory(), engine.client.vocabulary

    fingerprint, capacity, inventory, vocabulary = carry(serving("sglang", tmp_path), look)
    assert (fingerprint.engine, fingerprint.version, fingerprint.device) == ("sglang", "0.5.23", "cpu")
    assert (fingerprint.weights, fingerprint.kv_cache) == ("bf16", "bf16"), "the server itself says `auto`"
    assert fingerprint.weights_digest
    assert fingerprint.tokenizer_digest
    assert fingerprint.template_digest
    assert fingerprint.flags["attention_backend"] == "torch_native"
    assert "31998" not in fingerprint.flags["launched"]
    assert capacity == Capacity(
        kv_tokens=8192, kv_bytes_per_token=0.176 * 2**30 / 8192, weight_bytes=int(0.215 * 2**30), max_requests=4
    )
    assert (inventory.kv_scales, inventory.checkpoint_bytes, inventory.warnings) == ("none", 128, ())
    assert inventory.numerics["chunked_prefill_size"] == "4096"
    assert vocabulary == 49152


def test_what_it_is_is_the_same_at_every_start(tmp_path: Path) -> None:
    async def look(engine: Any) -> Any:
        return await engine.fingerprint()

    assert carry(serving("sglang", tmp_path), look) == carry(serving("sglang", tmp_path), look)


FP8 = "Using FP8 KV cache but no scaling factors provided. Defaulting to scaling factors of 1.0."
BAD = "An error occurred while reading '/s.json'\nDefaulting to KV cache scaling factors = 1.0 for all layers in TP rank 0 as an error occurred during loading"  # fmt: skip  # noqa: E501
SAYS: dict[str, tuple[str, str]] = {
    "KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 9": ("fp8_e4m3", ""),
    "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 9\nPost-capture KV sizing: KV cache allocated. dtype: "
    "torch.float8_e5m2, #tokens: 8": ("fp8_e5m2", ""),
    "KV Cache is allocated. dtype: torch.uint8, #tokens: 9": ("", ""),
    "": ("", ""),
    f"{FP8}\nKV Cache is allocated. dtype: torch.float8_e4m3fn": ("fp8_e4m3", FP8),
}


@pytest.mark.parametrize("log", SAYS)
def test_the_kv_dtype_is_what_the_log_says_was_allocated(log: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(log)
    engine = engine_of("sglang", tmp_path, {"FAKE_WIRE": str(WIRE), "FAKE_LOG": str(tmp_path / "log")})

    async def look(engine: Any) -> Any:
        return (await engine.fingerprint()).kv_cache, (await engine.inventory()).warnings

    kv_cache, warnings = carry(engine, look)
    assert (kv_cache, "".join(warnings)) == SAYS[log]


def test_a_packed_kv_cache_is_named_by_the_server(tmp_path: Path) -> None:
    engine = engine_of("sglang", tmp_path, {})
    engine._info = {"kv_cache_dtype": "nvfp4"}
    assert engine._kv_cache() == "nvfp4"


@pytest.mark.parametrize(
    ("tensors", "path", "log", "scales"),
    [
        (None, "", FP8, "none"),
        (None, "/s.json", "", "file"),
        (None, "/s.json", BAD, "none"),
        ({"l.0.k_scale": ("F32", 1), "w": ("BF16", 4)}, "", FP8, "checkpoint"),
    ],
)
def test_scales_are_looked_for_in_the_checkpoint_because_the_warning_proves_nothing(
    tensors: Any, path: str, log: str, scales: str, tmp_path: Path
) -> None:
    """SGLang prints it also when the checkpoint brings scales, and says "loaded" after it failed to read a file of them."""
    checkpoint(tmp_path / "model", tensors)
    (tmp_path / "log").write_text(log)
    env = {"FAKE_WIRE": str(WIRE), "FAKE_LOG": str(tmp_path / "log")}
    engine = engine_of("sglang", tmp_path, env, weights_and_kv={"quantization_param_path": path})

    async def look(engine: Any) -> Any:
        return (await engine.inventory()).kv_scales

    assert carry(engine, look) == scales


def test_weights_quantised_while_loading_are_named_so(tmp_path: Path) -> None:
    from evalrig.checkpoint import read

    engine = engine_of("sglang", tmp_path, {}, weights_and_kv={"quantization": "nvfp4_online"})
    engine.checkpoint = read(tmp_path / "model")
    assert engine.weights_dtype() == "nvfp4"
    engine.options.weights_and_kv.quantization = ""
    assert engine.weights_dtype() == "bf16"


def test_it_tokenises_answers_and_scores_through_the_recorded_server(tmp_path: Path) -> None:
    async def use(engine: Any) -> Any:
        text = await engine.tokenize("The capital of France is Paris.")
        messages = recorded("7-tokenize-messages")["request"]["messages"]
        chat = await engine.tokenize([Message(**message) for message in messages])
        answer = await engine.generate(IDS[:5], Sampling(max_tokens=4))
        return text, chat, answer, await engine.score(IDS, 1, 5)

    text, chat, answer, scoring = carry(serving("sglang", tmp_path), use)
    assert text == tuple(recorded("7-tokenize-text")["response"]["tokens"])
    assert chat == tuple(recorded("7-tokenize-messages")["response"]["tokens"])
    assert answer.token_ids == (7042, 30, 198, 198)
    assert (scoring.top_ids.shape, scoring.token_ids.tolist()) == ((6, 5), IDS[1:])


# ---- legs


def test_each_leg_is_a_call_of_its_own(tmp_path: Path) -> None:
    """The recorded server answers each as it did: cold from the first token, over its cache, and with lists as it decodes."""
    both, warm = recorded("5-score-flat-b64-both"), recorded("5-score-prefix-warm")

    async def use(engine: Any) -> Any:
        ids = warm["request"]["input_ids"]
        return (
            await engine.score(IDS, 1, 5),
            await engine.decode(IDS, Sampling(max_tokens=2), 5),
            await engine.score_cached(ids, 251, 0),
        )

    wire = tmp_path / "wire"
    wire.mkdir()
    for name in ("1-server_info", "1-ready", "5-score-flat-b64", "5-score-prefix-warm"):
        (wire / f"{name}.json").write_text((WIRE / f"{name}.json").read_text())
    both["request"].pop("logprob_start_len")  # recorded together with a prompt's lists; `decode` asks for its own alone
    (wire / "5-score-flat-b64-both.json").write_text(json.dumps(both))
    prefill = {**warm, "request": {"input_ids": warm["request"]["input_ids"][:250]}, "response": {"text": ""}}
    (wire / "prefill.json").write_text(json.dumps(prefill))
    cold, (answer, lists), cached = carry(engine_of("sglang", tmp_path, {"FAKE_WIRE": str(wire)}), use)
    assert cold.top_ids.shape == (6, 5)
    assert answer.token_ids == tuple(both["response"]["output_ids"]) == tuple(lists.token_ids.tolist())
    assert cached.token_ids.tolist() == warm["request"]["input_ids"][251:]


def test_replicas_or_no_radix_cache_cannot_score_over_a_cached_prefix(tmp_path: Path) -> None:
    def able(**args: Any) -> bool:
        return Sglang.able(engine_of("sglang", tmp_path, {}, **args).options).cached_prefix

    assert able()
    assert not able(numerics={"disable_radix_cache": True})
    assert not able(parallel={"dp": 2})


def test_a_template_given_on_the_command_line_is_the_one_that_counts(tmp_path: Path) -> None:
    from evalrig.checkpoint import read

    other = tmp_path / "tools.jinja"
    other.write_text("{{ tools }}")
    engine = engine_of("sglang", tmp_path, {}, parsers={"chat_template": str(other)})
    engine.checkpoint = read(tmp_path / "model")
    given = engine.template_digest()
    engine.options.parsers.chat_template = ""
    assert given not in ("", engine.template_digest())
    assert engine.template_digest() == engine.checkpoint.template_digest
