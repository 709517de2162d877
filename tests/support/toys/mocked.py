"""The mock engine of the load client in its own process, so that nothing the test does keeps it from its steps."""

import json
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from evalrig.loadgen.schedule import Address, Call


class Mocked:
    """A running mock server."""

    def __init__(self, port: int, certificate: str) -> None:
        self.port = port
        self._certificate = certificate
        self.address = Address(host="127.0.0.1", port=port)

    def log(self) -> dict[str, dict[str, Any]]:
        """What it was asked and sent, by `request_id`."""
        url = f"{'https' if self._certificate else 'http'}://127.0.0.1:{self.port}/log"
        context = ssl.create_default_context(cafile=self._certificate) if self._certificate else None
        with urllib.request.urlopen(url, timeout=20, context=context) as answer:
            return {entry["request"]: entry for entry in json.load(answer)}


@contextmanager
def mocked(*options: str, certificate: str = "") -> Generator[Mocked]:
    """A mock server with options of its command line; it ends by itself after a minute."""
    argv = [sys.executable, "-m", "evalrig.loadgen.mock_server", *options, "--certificate", certificate]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Mocked(int(process.stdout.readline()), certificate)
        finally:
            process.kill()


def call(name: str, due: float = 0.0, *, tokens: int = 3, after: int | None = None, primes: bool = False) -> Call:
    """A request that the log knows by `name`."""
    body = {"prompt": [1, 2, 3], "max_tokens": tokens, "stream": True, "request_id": name}
    return Call(body=json.dumps(body).encode(), due=due, max_tokens=tokens, after=after, primes=primes)
