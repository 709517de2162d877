"""Starting, watching and ending engines that are programs: every class of failed start, a hang, a crash, and nothing left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from toys.checkpoints import checkpoint
from toys.launched import COMMAND, IDS, KINDS, READY, SERVE, WIRE, all_flags, carry, engine_of, said, serving
from toys.runs import carry_out, run_file

from evalrig.errors import EngineError, UsageError
from evalrig.launcher import redacted
from evalrig.programs import Program, known_flags
from evalrig.started import GRACE, STAGES, how_far
from evalrig.types import Outcome, Variant

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process groups and parent-death signals as on Linux")
FAILED = sorted(
    path for kind in KINDS for path in (WIRE / "logs" / kind).glob("start_*.txt") if "accepted" not in path.name
)


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


def number_in(path: Path) -> int:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if path.is_file() and (text := path.read_text()):
            return int(text)
        time.sleep(0.02)
    raise AssertionError(f"{path} was not written")


def failure(engine: Any) -> str:
    async def nothing(_: Any) -> None:
        raise AssertionError("it started")

    with pytest.raises(EngineError) as caught:
        carry(engine, nothing)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("log", FAILED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_failed_start_is_one_line_with_cause_remedy_and_log(log: Path, tmp_path: Path) -> None:
    kind = log.parent.name
    code = {"start_port_in_use": "3"}.get(log.stem, "1")
    text = failure(engine_of(kind, tmp_path, {"FAKE_LOG": str(log), "FAKE_EXIT": code}))
    assert text.startswith("arm: did not start, ")
    assert text.endswith(f"; see {tmp_path / 'engine.log'}")
    assert text.count("; ") >= 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_taken_port_is_tried_again_before_it_is_told(kind: str, tmp_path: Path) -> None:
    log = WIRE / "logs" / kind / "start_port_in_use.txt"
    text = failure(engine_of(kind, tmp_path, {"FAKE_LOG": str(log), "FAKE_EXIT": "3"}))
    assert text.startswith("arm: did not start, port taken: ")
    assert (tmp_path / "engine.log").read_text().lower().count("address already in use") >= 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_start_that_hangs_ends_at_its_deadline_and_leaves_nothing(kind: str, tmp_path: Path) -> None:
    child = tmp_path / "child"
    env = {**READY[kind], "FAKE_HANG": "1", "FAKE_CHILD": str(child)}
    text = failure(engine_of(kind, tmp_path, env, start_seconds=1.5))
    assert text.startswith(
        "arm: not ready after 2 s, last heard: KV cache allocated; raise engine.start_seconds, or see "
    )
    assert gone(number_in(child))


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_of_an_earlier_start_is_not_told_for_this_one(kind: str, tmp_path: Path) -> None:
    (tmp_path / "engine.log").write_text("torch.OutOfMemoryError: CUDA out of memory.\n")
    text = failure(
        engine_of(kind, tmp_path, {"FAKE_LOG": str(WIRE / "logs" / kind / "start_bad_flag.txt"), "FAKE_EXIT": "2"})
    )
    assert text.startswith("arm: did not start, bad flag: ")


@pytest.mark.parametrize("kind", KINDS)
def test_it_starts_says_how_far_it_is_and_stops_with_all_it_started(kind: str, tmp_path: Path) -> None:
    child = tmp_path / "child"
    engine = engine_of(kind, tmp_path, {**SERVE[kind], **READY[kind], "FAKE_CHILD": str(child)})
    said.clear()

    async def look(engine: Any) -> int:
        assert engine.alive()
        return engine._parts[0].process.pid

    pid = carry(engine, look)
    assert not engine.alive()
    assert gone(pid)
    assert gone(number_in(child))
    assert said == ["arm: KV cache allocated"]


@pytest.mark.parametrize("kind", KINDS)
def test_another_server_on_the_port_is_not_taken_for_ours(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = serving(kind, tmp_path)
    monkeypatch.setattr(type(engine), "folder", property(lambda _: "/models/other"))

    async def nothing(_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(engine, "arguments", lambda port: ["--port", str(port), "--model-path", "/x", "--model", "/x"])
    with pytest.raises(EngineError, match="another server answers there"):
        carry(engine, nothing)


@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_is_seen_at_the_call_that_met_it(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's server ends with code 0 when its engine was killed, so the code says nothing."""
    monkeypatch.setattr("evalrig.wire.PAUSES", (0.0, 0.0))
    engine = engine_of(kind, tmp_path, {**SERVE[kind], **READY[kind], "FAKE_DIE_AFTER": "1"})

    async def crash(engine: Any) -> None:
        with pytest.raises(EngineError, match=r"^arm: /\S+ failed: "):
            await engine.score(IDS, 1, 5)
        assert not engine.alive()

    carry(engine, crash)


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_fails_alone_leaves_the_engine_alive(kind: str, tmp_path: Path) -> None:
    async def fail(engine: Any) -> None:
        with pytest.raises(EngineError, match="was not recorded"):
            await engine.score([1, 2, 3], 1, 5)
        assert engine.alive()

    carry(serving(kind, tmp_path), fail)


def test_nothing_is_left_when_the_harness_is_killed(tmp_path: Path) -> None:
    """A parent-death signal reaches the server alone: vLLM's engine core would stay (wire/INDEX.md)."""
    child, pid, stopped = (tmp_path / name for name in ("child", "pid", "stopped"))
    env, stop = {**SERVE["sglang"], "FAKE_CHILD": str(child)}, ["touch", str(stopped)]
    code = (
        f"import asyncio, pathlib, sys; sys.path[:0] = {sys.path!r}\n"
        "from toys.launched import engine_of\n"
        "async def main():\n"
        f"    engine = engine_of('sglang', pathlib.Path({str(tmp_path)!r}), {env!r}, program={{'stop_command': {stop!r}}})\n"
        "    await engine.start()\n"
        f"    pathlib.Path({str(pid)!r}).write_text(str(engine._parts[0].process.pid))\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )  # fmt: skip
    harness = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    try:
        engine, grandchild = number_in(pid), number_in(child)
        os.kill(harness.pid, signal.SIGKILL)
        assert gone(engine, GRACE + 10)
        assert gone(grandchild, GRACE + 10)
        end = time.monotonic() + 10
        while not stopped.is_file() and time.monotonic() < end:
            time.sleep(0.02)
        assert stopped.is_file(), "the stop command is for what stands outside the process group: a container"
    finally:
        harness.kill()
        harness.wait(10)


def test_a_container_is_named_per_run_and_removed(tmp_path: Path) -> None:
    log, removed = tmp_path / "engine.log", tmp_path / "removed"
    code = (
        "import runpy, sys; print('named', sys.argv[1], flush=True); sys.argv[:2] = sys.argv[2:3]; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    wrapper = [sys.executable, "-S", "-c", code]
    program = {
        "command": [*wrapper, "{name}", COMMAND[-1]],
        "stop_command": ["sh", "-c", f"echo {{name}} > {removed}"],
    }

    async def nothing(_: Any) -> None:
        pass

    carry(engine_of("sglang", tmp_path, SERVE["sglang"], program=program), nothing)
    name = next(line.split()[1] for line in log.read_text().splitlines() if line.startswith("named"))
    assert name.startswith("evalrig-arm-")
    assert removed.read_text().strip() == name


# ---- before anything starts


def reach(kind: str, folder: Path, flags: str, **args: Any) -> None:
    engine = engine_of(kind, folder, {}, **args)
    os.environ["FAKE_FLAGS"] = flags
    try:
        KINDS[kind].reach(engine.variant, engine.options, "candidates.arm")
    finally:
        del os.environ["FAKE_FLAGS"]


@pytest.fixture(autouse=True)
def fresh_help() -> None:
    from evalrig import programs

    programs._asked.cache_clear()


@pytest.mark.parametrize("kind", KINDS)
def test_flags_that_the_program_does_not_know_are_refused_before_it_starts(kind: str, tmp_path: Path) -> None:
    reach(kind, tmp_path, all_flags(kind), extra=["--no-such-mercy", "1"])
    with pytest.raises(UsageError) as caught:
        reach(kind, tmp_path, all_flags(kind), extra=["--no-such-mercys=1"])
    assert str(caught.value) == (
        f"candidates.arm.args: this {kind} knows no flag `--no-such-mercys`; did you mean `--no-such-mercy`?"
    )


def test_a_typed_option_whose_flag_was_removed_is_refused_too(tmp_path: Path) -> None:
    flags = all_flags("sglang").replace("--enable-fp32-lm-head", "--other")
    reach("sglang", tmp_path, flags)
    from evalrig import programs

    programs._asked.cache_clear()
    with pytest.raises(UsageError, match="this sglang knows no flag `--enable-fp32-lm-head`; "):
        reach("sglang", tmp_path, flags, numerics={"fp32_lm_head": True})


def test_a_program_that_is_no_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^candidates\.arm\.args\.program\.command: `.*` names no flags, but says: "):
        reach("sglang", tmp_path, "--few")
    line = r"^candidates\.arm\.args\.program\.command: cannot run `/no/such`: No such file or directory; name a program"
    with pytest.raises(UsageError, match=line):
        reach("sglang", tmp_path, "", program={"command": ["/no/such"]})
    with pytest.raises(UsageError, match=r"program\.python: `\S+` has no sglang; name the Python that has it$"):
        reach("sglang", tmp_path, "", program={"command": [], "python": sys.executable})


def test_the_help_is_read_once_per_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    calls, python = tmp_path / "calls", tmp_path / "python"
    names = " ".join(f"--flag-{n}" for n in range(30))
    version = tmp_path / "version"
    version.write_text("1.0")
    python.write_text(f'#!/bin/sh\nif [ "$1" = -c ]; then cat {version}; else echo x >> {calls}; echo "{names}"; fi\n')
    python.chmod(0o755)

    def read() -> int:
        from evalrig import programs

        programs._asked.cache_clear()
        assert "--flag-7" in known_flags(Program(python=str(python)), "sglang", "sglang.launch_server", "here")
        return len(calls.read_text().splitlines())

    assert [read(), read()] == [1, 1]
    version.write_text("1.1")
    assert [read(), read()] == [2, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_checkpoint_is_refused(kind: str, tmp_path: Path) -> None:
    owner = KINDS[kind]
    variant = Variant(name="arm", role="candidate", engine=kind, weights="/no/such")
    with pytest.raises(UsageError, match=r"^candidates\.arm\.weights: '/no/such': no such folder; give the folder"):
        owner.reach(variant, owner.Options(), "candidates.arm")


@pytest.mark.parametrize("kind", KINDS)
def test_extra_arguments_cannot_undo_a_typed_option(kind: str, tmp_path: Path) -> None:
    """`--kv-cache-dtype auto` last on the command line would win, and hide what is compared."""
    for flag in ("--kv-cache-dtype", "--kv-cache-dtype=auto"):
        with pytest.raises(
            UsageError, match=r"^candidates\.arm\.args\.extra: `--kv-cache-dtype` has an option of its own; set it"
        ):
            engine_of(kind, tmp_path, {}, extra=[flag, "auto"])
    with pytest.raises(UsageError, match=r"^candidates\.arm\.args\.extra: `--port` is set by evalrig; leave it out"):
        engine_of(kind, tmp_path, {}, extra=["--port", "1"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("where", "args"),
    [
        ("extra", {"extra": ["--api-key", "canary"]}),
        ("extra", {"extra": ["--admin-api-key=canary"]}),
        ("program.env", {"program": {"command": COMMAND, "env": {"HF_TOKEN": "canary"}}}),
        ("program.command", {"program": {"command": ["docker", "run", "-e", "HF_TOKEN=canary", "image"]}}),
    ],
)
def test_a_secret_in_the_run_file_is_refused(kind: str, where: str, args: Any, tmp_path: Path) -> None:
    """The run file is printed by `show` and kept with the run; and a server with a key refuses evalrig after its start."""
    with pytest.raises(UsageError, match=rf"^candidates\.arm\.args\.{where}: the value of ") as caught:
        engine_of(kind, tmp_path, {}, **args)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_words_that_only_look_like_secrets_are_taken(kind: str, tmp_path: Path) -> None:
    program = {"command": [*COMMAND, "-e", "HF_TOKEN"], "env": {"TOKENIZERS_PARALLELISM": "false"}}
    engine_of(kind, tmp_path, {}, program=program, extra=["--think-end-token", "</think>", "--hf-token"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", ["tp", "dp", "pp"])
def test_no_gpus_at_all_is_refused_by_show(kind: str, key: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"^candidates\.arm\.args\.parallel\.{key}: 0; 1 is the least"):
        engine_of(kind, tmp_path, {}, parallel={key: 0})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["auto", ""])
def test_an_automatic_kv_dtype_is_refused(kind: str, dtype: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"weights_and_kv\.kv_cache_dtype: `auto` is FP8 for some models"):
        engine_of(kind, tmp_path, {}, weights_and_kv={"kv_cache_dtype": dtype})


def test_a_reference_that_does_not_start_makes_the_run_invalid_with_the_reason(tmp_path: Path) -> None:
    log = str(WIRE / "logs" / "sglang" / "start_unsupported_kv_dtype.txt")
    env = {"FAKE_FLAGS": all_flags("sglang"), "FAKE_LOG": log, "FAKE_EXIT": "1"}
    engine = {"kind": "sglang", "options": {"program": {"command": COMMAND, "env": env}}}
    reference = {"weights": str(checkpoint(tmp_path / "model")), "expect": {"weights": "bf16"}}
    fp8kv = {"weights_and_kv": {"kv_cache_dtype": "fp8_e4m3"}}
    finished = carry_out(run_file(tmp_path, {"fp8kv": fp8kv}, engine=engine, reference=reference))
    assert (finished.verdict.outcome, finished.verdict.exit_code) == (Outcome.INVALID, 3)
    said = "reference: did not start, unsupported dtype: ValueError: CPU FP8 KV cache requires Intel AMX support."
    assert finished.stopped.startswith(said)


# ---- small parts


def test_progress_is_taken_from_the_last_line_that_tells() -> None:
    shards = "Loading safetensors checkpoint shards:  "
    log = f"Load weight begin. avail mem=1\n{shards}12% Completed\r{shards}63% Completed"
    assert how_far(log) == "loading weights 63 %"
    assert how_far(log + "\nLoad weight end. elapsed=1") == "weights loaded"
    assert how_far("Capturing batches (bs=8):  50%|") == "capturing CUDA graphs 50 %"
    assert how_far("") == ""
    assert len(STAGES) > 3


def test_secrets_of_a_command_line_are_not_written_down() -> None:
    words = ["--api-key", "abc", "--tp", "8", "--hf-token=xyz", "--admin-api-key=q"]
    assert redacted(words) == [
        "--api-key",
        "(redacted)",
        "--tp",
        "8",
        "--hf-token=(redacted)",
        "--admin-api-key=(redacted)",
    ]
