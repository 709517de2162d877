"""What the contract tests of the launched engines share: a fake program, and a way to run an engine of a kind on it."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from evalrig.config.load import options
from evalrig.engine import Engine, Launch
from evalrig.engines.sglang import Sglang
from evalrig.engines.vllm import Vllm
from evalrig.launcher import Launched
from evalrig.types import Variant
from toys import program
from toys.checkpoints import checkpoint

WIRE = Path(__file__).parents[2] / "contract" / "wire"
COMMAND = [sys.executable, "-S", str(Path(program.__file__))]
KINDS: dict[str, type[Launched]] = {"sglang": Sglang, "vllm": Vllm}
READY = {
    kind: {"FAKE_LOG": str(WIRE / "logs" / kind / "ready_capacity_and_shutdown.txt")} for kind in ("sglang", "vllm")
}
SERVE = {"sglang": {"FAKE_WIRE": str(WIRE)}, "vllm": {"FAKE_WIRE": str(WIRE / "vllm")}}
IDS = [504, 3575, 282, 4649, 314, 7042, 30]


def all_flags(kind: str) -> str:
    owner = KINDS[kind]
    return " ".join(
        sorted({flag for _, _, flag in owner.table} | owner.reserved | {"--trust-remote-code", "--no-such-mercy"})
    )


def engine_of(kind: str, folder: Path, env: dict[str, str], start_seconds: float = 20, **args: Any) -> Any:
    """An engine on the fake program; its checkpoint is made on the way."""
    owner = KINDS[kind]
    weights = checkpoint(folder / "model") if not (folder / "model").is_dir() else folder / "model"
    made = options(
        {**args, "program": {"command": COMMAND, "env": env, **args.get("program", {})}}, owner.Options, "test"
    )
    variant = Variant(name="arm", role="candidate", engine=kind, weights=str(weights))
    owner.resolve(variant, made, "candidates.arm")
    launch = Launch(log=folder / "engine.log", start_seconds=start_seconds, request_seconds=10, say=said.append)
    return owner(variant, made, launch)


said: list[str] = []


def serving(kind: str, folder: Path, **args: Any) -> Any:
    return engine_of(kind, folder, {**SERVE[kind], **READY[kind]}, **args)


def carry(engine: Engine, test: Callable[[Any], Awaitable[Any]], start: bool = True) -> Any:
    """Start, do, stop; the stop is bounded."""

    async def whole() -> Any:
        try:
            if start:
                await engine.start()
            return await test(engine)
        finally:
            began = time.monotonic()
            await engine.stop()
            assert time.monotonic() - began < 10

    return asyncio.run(asyncio.wait_for(whole(), 60))
