"""A server that answers from lists, by path, and keeps what it was asked."""

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CLOSE = "close the connection"
CUT = "say more will come, send half, close"


class Server(ThreadingHTTPServer):
    """`answers[path]` in order, each (status, content), CLOSE, or (CUT, content); the last one repeats."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, list[Any]] = {}
        self.asked: list[tuple[str, Any]] = []

    def bodies(self, path: str) -> list[Any]:
        """What was sent to a path."""
        return [body for asked, body in self.asked if asked == path]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server  # type: ignore[assignment]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.asked.append((self.path, json.loads(body) if body else None))
        answers = self.server.answers.get(self.path, [(404, {"error": {"message": "File Not Found"}})])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer == CLOSE:
            self.close_connection = True
            return
        status, content = answer
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(200 if status == CUT else status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw[: len(raw) // 2] if status == CUT else raw)
        self.close_connection = status == CUT

    do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving() -> Generator[Server]:
    """A running server."""
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield running
        finally:
            running.shutdown()
            thread.join(10)
