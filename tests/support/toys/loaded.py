"""The shipped mock server, and schedules for it."""

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

from evalrig.loadgen.schedule import Address, Call, Schedule


class Mock:
    """One running server."""

    def __init__(self, port: int) -> None:
        self.port = port

    def address(self, chat: bool = False) -> Address:
        return Address(host="127.0.0.1", port=self.port, path="/v1/chat/completions" if chat else "/v1/completions")

    def log(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/log", timeout=20) as answer:
            return json.loads(answer.read())


@contextlib.contextmanager
def mock(**behaviour: Any) -> Iterator[Mock]:
    command = [sys.executable, "-m", "evalrig.loadgen.mock_server", json.dumps(behaviour)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield Mock(int(process.stdout.readline()))
    finally:
        process.stdin.close()
        process.wait(20)
        process.stdout.close()


def calls(count: int, every: float = 0.0, tokens: int = 8, **more: Any) -> tuple[Call, ...]:
    return tuple(
        Call(
            body=json.dumps({"user": str(n), "prompt": [1, 2, 3], "max_tokens": tokens, "stream": True}).encode(),
            due=n * every,
            max_tokens=tokens,
            **more,
        )
        for n in range(count)
    )


def open_loop(count: int, every: float, tokens: int = 8) -> Schedule:
    return Schedule(calls=calls(count, every, tokens), loop="open")


def closed_loop(count: int, lanes: int, tokens: int = 8) -> Schedule:
    return Schedule(calls=calls(count, tokens=tokens), loop="closed", concurrency=lanes)
