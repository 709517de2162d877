"""A prefill/decode split of SGLang on a fake program: what is started in which order, what is proved, and what is left behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from toys.launched import COMMAND, IDS, READY, SERVE, WIRE, all_flags, carry, engine_of, said
from toys.runs import run_file

from evalrig.assemble import assemble
from evalrig.config.load import load_run
from evalrig.engine import Chat, Sampling
from evalrig.engines.sglang import Sglang, SglangOptions
from evalrig.errors import EngineError, UsageError
from evalrig.preflight import prove
from evalrig.proof import Preflight, Probes
from evalrig.sglang_pd import LONGEST_LIST, ROUTER_FLAGS, SERVER_FLAGS, Pd
from evalrig.started import GRACE
from evalrig.types import SPLIT, Capacity, Fingerprint, Level, Message
from evalrig.validity import compare

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process groups and parent-death signals as on Linux")
ONE_EACH: dict[str, Any] = {"prefill": 1, "decode": 1, "router_command": COMMAND}


def split(folder: Path, env: dict[str, str] | None = None, pd: dict[str, Any] | None = None, **args: Any) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    env = {**SERVE["sglang"], **READY["sglang"], "FAKE_ARGV": str(folder / "argv"), **(env or {})}
    return engine_of("sglang", folder, env, pd={**ONE_EACH, **(pd or {})}, **args)


def started(folder: Path) -> list[tuple[int, str, list[str]]]:
    """Process id, role and command line of everything that was started, in order."""
    lines = (folder / "argv").read_text().splitlines() if (folder / "argv").is_file() else []
    return [(pid, role, argv) for pid, role, *argv in map(json.loads, lines)]


def gone(pid: int, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def word_after(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


async def nothing(_: Any) -> None:
    pass


def refusal(engine: Any) -> str:
    with pytest.raises(EngineError) as caught:
        carry(engine, nothing)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---- what is started


def test_servers_start_in_order_and_the_router_is_told_where_they_are(tmp_path: Path) -> None:
    pd = {"prefill": 2, "decode": 1, "ib_device": "mlx5_0", "kv_checksum": True, "router_args": ["--mini-lb"]}
    said.clear()

    async def look(engine: Any) -> None:
        assert engine.alive()

    carry(split(tmp_path, pd=pd, parallel={"tp": 4}), look)
    assert [role for _, role, _ in started(tmp_path)] == ["prefill", "prefill", "decode", "router"]
    first, second, decode, router = [argv for _, _, argv in started(tmp_path)]
    for argv in (first, second, decode):
        assert word_after(argv, "--model-path") == str(tmp_path / "model")
        assert word_after(argv, "--kv-cache-dtype") == "bfloat16"
        assert word_after(argv, "--disaggregation-transfer-backend") == "mooncake"
        assert word_after(argv, "--disaggregation-ib-device") == "mlx5_0"
        assert "--disaggregation-enable-kv-checksum" in argv
    assert [word_after(argv, "--base-gpu-id") for argv in (first, second, decode)] == ["0", "4", "8"]
    assert "--disaggregation-bootstrap-port" not in decode
    ports = [word_after(argv, "--disaggregation-bootstrap-port") for argv in (first, second)]
    urls = [f"http://127.0.0.1:{word_after(argv, '--port')}" for argv in (first, second, decode)]
    assert router == [
        *("--pd-disaggregation", "--prefill", urls[0], ports[0], "--prefill", urls[1], ports[1], "--decode", urls[2]),
        *("--host", "127.0.0.1", "--port", word_after(router, "--port"), "--mini-lb"),
    ]
    assert len({*ports, *urls}) == 5
    assert (
        said
        == [f"arm, {role}: KV cache allocated" for role in ("prefill-0", "prefill-1", "decode-0", "router")][
            : len(said)
        ]
    )
    for pid, _, _ in started(tmp_path):
        assert gone(pid)
    logs = {path.name for path in tmp_path.glob("engine*.log")}
    assert logs == {"engine.prefill-0.log", "engine.prefill-1.log", "engine.decode-0.log", "engine.router.log"}


def test_ports_and_gpus_that_were_given_are_used(tmp_path: Path) -> None:
    carry(split(tmp_path, pd={"bootstrap_port": 8998, "base_gpu_ids": [4, 0]}), nothing)
    prefill, decode, router = [argv for _, _, argv in started(tmp_path)]
    assert word_after(prefill, "--disaggregation-bootstrap-port") == "8998"
    assert (word_after(prefill, "--base-gpu-id"), word_after(decode, "--base-gpu-id")) == ("4", "0")
    assert router[router.index("--prefill") + 2] == "8998"


def test_requests_go_to_the_router_and_texts_to_a_prefill_server(tmp_path: Path) -> None:
    """The router turns no text into tokens, and gives no lists of given tokens."""

    async def use(engine: Any) -> Any:
        ids = await engine.tokenize("The capital of France is Paris.")
        answer = await engine.generate(IDS[:5], Sampling(max_tokens=4))
        _, lists = await engine.decode(IDS[:5], Sampling(max_tokens=4), 2)
        for call in (engine.score(IDS, 1, 5), engine.score_cached(IDS, 3, 5)):
            with pytest.raises(EngineError, match="a prefill/decode split gives no lists of given tokens"):
                await call
        with pytest.raises(EngineError, match=f"top-K 129 is above the {LONGEST_LIST} that it gives"):
            await engine.decode(IDS[:5], Sampling(max_tokens=4), 129)
        assert engine.alive()
        return ids, answer, lists, await engine.fingerprint(), await engine.capacity()

    ids, answer, lists, fingerprint, capacity = carry(split(tmp_path), use)
    assert list(ids) == IDS
    assert (answer.token_ids, lists.top_ids[:, 0].tolist()) == ((7042, 30, 198, 198), [7042, 30, 198, 198])
    assert (fingerprint.engine, fingerprint.weights, fingerprint.kv_cache) == ("sglang", "bf16", "bf16")
    assert fingerprint.flags[SPLIT] == "1 prefill, 1 decode, mooncake"
    assert fingerprint.flags["launched"].startswith("prefill-0: ")
    assert capacity.kv_tokens == 8192


def test_chats_go_to_the_router(tmp_path: Path) -> None:
    """The engine said that it chats, and refused each one as if it had not been started."""
    wire = tmp_path / "wire"
    shutil.copytree(WIRE, wire, ignore=shutil.ignore_patterns("chat", "vllm", "llamacpp", "logs"))
    shutil.copy(WIRE / "chat" / "sglang" / "1-models.json", wire)
    said = json.loads((WIRE / "chat" / "sglang" / "2-chat-return-ids.json").read_text())
    said["request"] = {"messages": said["request"]["messages"], "max_tokens": 4, "return_token_ids": True}
    (wire / "2-chat.json").write_text(json.dumps(said))
    chat = Chat(messages=(Message(**said["request"]["messages"][0]),))

    async def use(engine: Any) -> Any:
        assert engine.able(engine.options).chat
        return await engine.chat(chat, Sampling(max_tokens=4))

    answer = carry(split(tmp_path, {"FAKE_WIRE": str(wire)}), use)
    assert (answer.text, answer.finish) == (said["response"]["choices"][0]["message"]["content"], "length")


def test_it_says_the_same_at_every_start(tmp_path: Path) -> None:
    """A resumed run refuses an engine whose fingerprint changed: ports must not be in it."""

    async def look(engine: Any) -> Any:
        return await engine.fingerprint()

    engine = split(tmp_path)
    assert carry(engine, look) == carry(engine, look)


# ---- what goes wrong


@pytest.mark.parametrize(
    ("role", "part", "before"), [("prefill", "prefill-0", 0), ("decode", "decode-0", 1), ("router", "router", 2)]
)
def test_the_part_that_does_not_start_is_named_with_its_cause_and_its_log(
    role: str, part: str, before: int, tmp_path: Path
) -> None:
    log = str(WIRE / "logs" / "sglang" / "start_unsupported_kv_dtype.txt")
    text = refusal(split(tmp_path, {"FAKE_ONLY": role, "FAKE_EXIT": "1", "FAKE_LOG": log}))
    assert text.startswith(f"arm, {part}: did not start, unsupported dtype: ")
    assert text.endswith(f"; see {tmp_path / f'engine.{part}.log'}")
    assert len(started(tmp_path)) == before + 1, "what comes after is not started"
    assert all(gone(pid) for pid, _, _ in started(tmp_path)), "what was started before is ended"


def test_a_part_that_hangs_ends_at_its_deadline(tmp_path: Path) -> None:
    text = refusal(split(tmp_path, {"FAKE_ONLY": "decode", "FAKE_HANG": "1"}, start_seconds=3))
    assert text.startswith("arm, decode-0: not ready after 3 s, last heard: KV cache allocated; ")
    assert all(gone(pid) for pid, _, _ in started(tmp_path))


@pytest.mark.parametrize("which", [0, 1, 2])
def test_the_end_of_one_part_is_the_end_of_the_engine(which: int, tmp_path: Path) -> None:
    """A mini load balancer's `/health` is 200 whoever is dead behind it."""

    async def crash(engine: Any) -> None:
        assert engine.alive()
        pid = started(tmp_path)[which][0]
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineError):
            await engine.generate([1, 2], Sampling(max_tokens=1))  # not recorded, so it fails; a live engine would stay
        assert not engine.alive()

    carry(split(tmp_path), crash)
    assert all(gone(pid) for pid, _, _ in started(tmp_path))


def test_a_call_that_fails_alone_leaves_the_split_alive(tmp_path: Path) -> None:
    async def fail(engine: Any) -> None:
        with pytest.raises(EngineError, match="was not recorded"):
            await engine.generate([1, 2], Sampling(max_tokens=1))
        assert engine.alive()

    carry(split(tmp_path), fail)


@pytest.mark.parametrize("key", ["kv_cache_dtype", "page_size"])
def test_servers_that_differ_in_what_they_hand_on_are_refused(key: str, tmp_path: Path) -> None:
    env = {"FAKE_ONLY": "decode", "FAKE_SAY": json.dumps({key: "other"})}
    text = refusal(split(tmp_path, env))
    assert text.startswith(f"arm: the servers of the split differ in {key}: prefill-0 ")
    assert "decode-0 other; what one writes the other cannot read" in text
    assert [role for _, role, _ in started(tmp_path)] == ["prefill", "decode"]


def test_a_kv_cache_that_the_logs_have_in_two_dtypes_is_refused(tmp_path: Path) -> None:
    """The servers themselves may both say `auto`."""
    engine = split(tmp_path)
    allocated = {"prefill-0": "bf16", "decode-0": "fp8_e4m3"}
    engine._allocated = lambda role: allocated[role]
    assert "differ in KV cache: prefill-0 bf16, decode-0 fp8_e4m3" in refusal(engine)


def test_a_server_of_the_wrong_mode_is_refused(tmp_path: Path) -> None:
    env = {"FAKE_ONLY": "decode", "FAKE_SAY": json.dumps({"disaggregation_mode": "null"})}
    assert refusal(split(tmp_path, env)) == "arm, decode-0: the server runs as 'null', not as 'decode'"


def test_a_router_before_other_servers_is_not_taken_for_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from evalrig.sglang_pd import Split

    monkeypatch.setattr(Split, "_router_arguments", lambda self, port: _to_one(self, port))
    assert refusal(split(tmp_path)) == "arm, router: address already in use: it routes to other servers"


def _to_one(pd: Any, port: int) -> list[str]:
    """Both roles at the prefill server."""
    url = pd.halves[0].url
    return ["--pd-disaggregation", "--prefill", url, "1", "--decode", url, "--host", "127.0.0.1", "--port", str(port)]


def test_nothing_is_left_when_the_harness_is_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = (
        f"import asyncio, pathlib, sys; sys.path[:0] = {[*sys.path, str(Path(__file__).parent)]!r}\n"
        "from test_split import split\n"
        "async def main():\n"
        f"    engine = split(pathlib.Path({str(tmp_path)!r}))\n"
        "    await engine.start()\n"
        f"    pathlib.Path({str(ready)!r}).write_text('1')\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    harness = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    try:
        end = time.monotonic() + 40
        while not ready.is_file() and harness.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        assert ready.is_file()
        pids = [pid for pid, _, _ in started(tmp_path)]
        assert len(pids) == 3
        os.kill(harness.pid, signal.SIGKILL)
        assert all(gone(pid, GRACE + 10) for pid in pids)
    finally:
        harness.kill()
        harness.wait(10)


# ---- before anything starts


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"pd": {"prefill": 1}}, "pd: 1 prefill and 0 decode servers; give at least one of each, or none"),
        ({"pd": {**ONE_EACH, "base_gpu_ids": [0]}}, "pd.base_gpu_ids: 1 for 2 servers; give the first GPU of each"),
        ({"pd": {"prefill": 1, "decode": 1}}, "pd.router_command: needed where `program.command` is given"),
        ({"pd": {**ONE_EACH, "router_args": ["--port=1"]}}, "pd.router_args: `--port` is set by evalrig; leave it out"),
        ({"extra": ["--disaggregation-mode", "decode"]}, "extra: `--disaggregation-mode` has an option of its own"),
    ],
)
def test_options_of_a_split_that_do_not_go_together_are_refused(args: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        engine_of("sglang", tmp_path, {}, **args)
    assert str(caught.value).startswith(f"candidates.arm.args.{said}")


def reach(folder: Path, flags: str, pd: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from evalrig import programs

    programs._asked.cache_clear()
    engine = engine_of("sglang", folder, {}, pd=pd)
    monkeypatch.setenv("FAKE_FLAGS", flags)
    Sglang.reach(engine.variant, engine.options, "candidates.arm")


def test_flags_of_the_split_are_looked_for_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = " ".join([all_flags("sglang"), *SERVER_FLAGS, *ROUTER_FLAGS])
    reach(tmp_path, known, {**ONE_EACH, "kv_checksum": True}, monkeypatch)
    old = known.replace("--disaggregation-enable-kv-checksum", "--other")
    reach(tmp_path, old, ONE_EACH, monkeypatch)
    with pytest.raises(UsageError, match="this sglang knows no flag `--disaggregation-enable-kv-checksum`"):
        reach(tmp_path, old, {**ONE_EACH, "kv_checksum": True}, monkeypatch)
    with pytest.raises(UsageError, match=r"args\.pd: this router knows no flag `--mini-lb`; leave it out"):
        reach(tmp_path, known, {**ONE_EACH, "router_args": ["--mini-lb"]}, monkeypatch)
    reach(tmp_path, all_flags("sglang"), {}, monkeypatch)


def test_a_suite_that_scores_given_tokens_is_refused_for_a_split(tmp_path: Path) -> None:
    assert Sglang.able(SglangOptions(pd=Pd(prefill=1, decode=1))).decode_logprobs == LONGEST_LIST
    engine = {"kind": "sglang"}
    reference = {"weights": str(tmp_path / "model")}
    path = run_file(tmp_path, {"split": {"pd": {"prefill": 1, "decode": 1}}}, engine=engine, reference=reference)
    with pytest.raises(
        UsageError, match=r"suites\.kl: engine `sglang` cannot give logprobs of given tokens, top-20 lists;"
    ):
        assemble(load_run(path), path, lambda _: None, here=False)


# ---- what is proved


def test_a_split_is_proved_by_what_it_decodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No prompt is scored through the router; where nothing can be decoded either, nothing is proved."""
    wire = tmp_path / "wire"
    wire.mkdir()
    for name in ("1-server_info", "1-ready", "1-health", "7-tokenize-text"):
        (wire / f"{name}.json").write_text((WIRE / f"{name}.json").read_text())
    one = json.loads((WIRE / "4-generate-ids.json").read_text())
    one["request"] = {"input_ids": IDS}
    one["response"]["meta_info"] |= {"prompt_tokens": len(IDS)}
    for row in one["response"]["meta_info"]["output_top_logprobs"]:
        row += [[-30.0 - k, 1000 + k, None] for k in range(18)]
    (wire / "4-generate-ids.json").write_text(json.dumps(one))
    text = json.loads((wire / "7-tokenize-text.json").read_text())["request"]["prompt"]
    monkeypatch.setattr("evalrig.preflight.PROBES", {"prose": text})
    monkeypatch.setattr("evalrig.preflight.CONVERSATIONS", {})
    found = carry(split(tmp_path, {"FAKE_WIRE": str(wire)}), prove)
    assert set(found.probes.logprob_digests) == {"prose, decode"}
    assert (found.faults, found.probes.nats) == ((), None)
    assert found.fingerprint.flags[SPLIT]
    (wire / "4-generate-ids.json").unlink()
    with pytest.raises(EngineError, match="was not recorded"):
        carry(split(tmp_path, {"FAKE_WIRE": str(wire)}), prove)


def test_chats_go_through_the_router(tmp_path: Path) -> None:
    """Its client is another than that of one server, which was the only one that chats were given."""
    wire = tmp_path / "wire"
    wire.mkdir()
    for name in ("1-server_info", "1-ready", "1-health"):
        (wire / f"{name}.json").write_text((WIRE / f"{name}.json").read_text())
    one = json.loads((WIRE / "chat" / "sglang" / "2-chat-greedy-stop.json").read_text())
    one["request"] = {"messages": [{"role": "user", "content": "Hello?"}], "return_token_ids": True}
    (wire / "chat.json").write_text(json.dumps(one))
    names = {"object": "list", "data": [{"id": "m"}]}
    asked = {"method": "GET", "path": "/v1/models", "request": None, "status": 200, "response": names}
    (wire / "models.json").write_text(json.dumps(asked))

    async def chat(engine: Any) -> Any:
        return await engine.chat(Chat(messages=(Message(role="user", content="Hello?"),)), Sampling(max_tokens=16))

    answer = carry(split(tmp_path, {"FAKE_WIRE": str(wire)}), chat)
    assert answer.text == one["response"]["choices"][0]["message"]["content"]


def test_a_split_that_gives_the_reference_s_bits_did_engage() -> None:
    def proved(name: str, flags: dict[str, str]) -> Preflight:
        return Preflight(
            variant=name,
            expect={},
            fingerprint=Fingerprint(engine="sglang", version="1", weights="bf16", kv_cache="bf16", flags=flags),
            capacity=Capacity(),
            probes=Probes(logprob_digests={"prose": "a", "prose, decode": "b"}),
        )

    reference = proved("reference", {})
    [found] = [f for f in compare(reference, proved("cheap", {SPLIT: "1 prefill, 1 decode"})) if f.rule == "engaged"]
    assert (found.level, "bit-identical" in found.text) == (Level.OK, True)
    [found] = [f for f in compare(reference, proved("cheap", {})) if f.rule == "engaged"]
    assert found.level is Level.INVALID
