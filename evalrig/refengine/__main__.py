"""`python -m evalrig.refengine --model MODEL` (a GGUF file, or a folder of safetensors): loads a model and serves it until SIGTERM."""

import argparse
import asyncio
import ctypes
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from evalrig.errors import UsageError

if TYPE_CHECKING:
    from evalrig.refengine.engine import Engine, Settings

_PR_SET_PDEATHSIG = 1
_STOP_GRACE_S = 1
"""Seconds that open connections get after SIGTERM, and then the step in progress."""


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 after SIGTERM or SIGINT, 2 when it cannot start as asked (one line on stderr says why)."""
    options = _parser().parse_args(arguments)
    _one_blas_thread(options.threads)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="[%(asctime)s] %(message)s")
    for caught in (signal.SIGTERM, signal.SIGINT):
        signal.signal(caught, _leave)
    if options.parent_pid is not None:
        _die_with_parent(options.parent_pid)
    try:
        listener = _bind(options.host, options.port)
        _serve(options, listener)
    except UsageError as error:
        sys.stderr.write(f"refengine: {error}\n")
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m evalrig.refengine", description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file, or a safetensors folder")
    parser.add_argument("--weights", choices=("bf16", "fp8", "int4", "int4-asym", "f32"), default="bf16")
    parser.add_argument("--kv-cache", choices=("bf16", "fp8_e4m3", "f32"), default="bf16")
    parser.add_argument(
        "--kv-scale",
        type=_scale,
        default=1.0,
        help="divides keys and values before rounding: a number (1.0), or per-head: measured at start",
    )
    parser.add_argument("--kv-pool-bytes", type=int, help="size of the KV pool in bytes of its format (180 MiB)")
    parser.add_argument(
        "--context-length", type=int, help="longest sequence in tokens (the model's, or what the pool holds)"
    )
    parser.add_argument("--max-running", type=int, default=48, help="most requests in a step (48)")
    parser.add_argument("--chunk", type=int, default=256, help="most tokens in a step (256)")
    parser.add_argument(
        "--no-exact", action="store_true", help="do not pad matrix products to a fixed multiple of rows"
    )
    parser.add_argument(
        "--prefix-cache", action="store_true", help="keep prompts for requests that begin alike (off for scoring)"
    )
    parser.add_argument("--tool-call-parser", choices=("hermes",), help="take tool calls out of chat answers")
    parser.add_argument("--reasoning-parser", choices=("think",), help="keep thinking apart in chat answers")
    parser.add_argument("--fault", help="for tests: be wrong on purpose, as logit_noise=SIGMA:SEED")
    parser.add_argument("--threads", type=int, default=1, help="BLAS threads (1)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000, help="0: the system chooses (30000)")
    parser.add_argument("--port-file", type=Path, help="the port is written here once the server is ready")
    parser.add_argument("--parent-pid", type=int, help="exit when this parent process is gone")
    return parser


def _scale(text: str) -> float | None:
    if text == "per-head":
        return None
    value = float(text)
    if not 1e-6 <= value <= 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not between 1e-6 and 1e6")
    return value


def _one_blas_thread(threads: int) -> None:
    """Has to happen before numpy is imported; every import below this module's top waits for it."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"):
        os.environ[name] = str(threads)


def _leave(signum: int, frame: FrameType | None) -> None:
    """Before the server runs, and again when it has shut down (it raises the signal it caught once more): the end, in
    order."""
    sys.exit(0)


def _die_with_parent(parent: int) -> None:
    """Ends this process when process `parent` ends, also by SIGKILL.

    The kernel's signal is tied to the thread that started us, which may end long before its process: so it only makes
    us look.
    """

    def look(signum: int, frame: FrameType | None) -> None:
        if os.getppid() != parent:
            os._exit(0)

    signal.signal(signal.SIGUSR2, look)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGUSR2), 0, 0, 0)
    look(0, None)


def _bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet: a taken port is told before the model is loaded."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"--host {host} --port {port}: {error}; take another port, or 0 to let the system choose"
        ) from error
    return listener


def _settings(options: argparse.Namespace) -> "Settings":
    from evalrig.refengine.engine import DEFAULT_POOL_BYTES, Settings, Switches
    from evalrig.refengine.faults import fault_of

    return Settings(
        model=options.model,
        weights=options.weights,
        kv_cache=options.kv_cache,
        kv_scale=options.kv_scale,
        pool_bytes=DEFAULT_POOL_BYTES if options.kv_pool_bytes is None else options.kv_pool_bytes,
        context=options.context_length,
        max_running=options.max_running,
        chunk=options.chunk,
        switches=Switches(
            exact=not options.no_exact,
            prefix_cache=options.prefix_cache,
            tool_call_parser=options.tool_call_parser,
            reasoning_parser=options.reasoning_parser,
            fault=None if options.fault is None else fault_of(options.fault, "--fault"),
        ),
    )


def _serve(options: argparse.Namespace, listener: socket.socket) -> None:
    from evalrig.refengine.engine import start_engine

    engine = start_engine(_settings(options))
    logging.info(
        "KV Cache is allocated. dtype: %s, #tokens: %d; weights %s, exact holds: %s",
        options.kv_cache,
        engine.cache.pages * 16,
        options.weights,
        engine.exact_holds,
    )
    if options.fault is not None:
        logging.warning("FAULT switched on: %s. Every answer is wrong on purpose.", options.fault)
    try:
        asyncio.run(_run(engine, listener, options.port_file))
    finally:
        engine.scheduler.stop(_STOP_GRACE_S)


async def _run(engine: "Engine", listener: socket.socket, port_file: Path | None) -> None:
    import uvicorn

    from evalrig.refengine.server import create_app

    config = uvicorn.Config(
        create_app(engine),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_STOP_GRACE_S,
        timeout_keep_alive=60,
        lifespan="off",
        http="httptools",
        ws="none",
    )
    server = uvicorn.Server(config)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    if server.started:
        _announce(listener, port_file)
    await serving


def _announce(listener: socket.socket, port_file: Path | None) -> None:
    host, port = listener.getsockname()[:2]
    if port_file is not None:
        part = port_file.with_name(port_file.name + ".part")
        part.write_text(f"{port}\n")
        part.replace(port_file)
    logging.info("The server is fired up and ready to roll! http://%s:%d", host, port)


if __name__ == "__main__":
    sys.exit(main())
