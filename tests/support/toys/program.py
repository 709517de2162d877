"""A stand-in for `python -m sglang.launch_server` and vLLM's server: a program that writes a log and serves recorded exchanges.

Standard library only, so that it starts in no time. What it does is told by its environment:

    FAKE_FLAGS      the flags that `--help` names
    FAKE_LOG        a recorded log to write (its `#` lines are the recorder's)
    FAKE_EXIT       then end with this code
    FAKE_HANG       then do nothing, and ignore SIGTERM
    FAKE_WIRE       folder of recorded exchanges to serve on `--port`
    FAKE_CHILD      start a grandchild and write its process id here
    FAKE_DIE_AFTER  end without a word at this request for tokens
    FAKE_ARGV       append the command line here, one JSON list a line
    FAKE_ONLY       of a prefill/decode split: `prefill`, `decode` or `router`, whom FAKE_EXIT, FAKE_HANG and FAKE_SAY concern
    FAKE_SAY        change these keys of `/server_info` (JSON)
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Exchanges(ThreadingHTTPServer):
    """Serves recorded exchanges: the first whose request is contained in what was asked."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        files = sorted(folder.glob("*.json"))
        self.exchanges = [found for path in files if "path" in (found := json.loads(path.read_text("utf-8")))]
        self.asked: list[tuple[str, str, Any]] = []
        self.strangers: list[tuple[str, str, Any]] = []
        """Requests that match nothing recorded."""
        self.model_path = ""
        self.changes: dict[str, Any] = {}
        """Of `/server_info`."""
        self.behind: dict[str, list[str]] = {}
        """Of a router: mode -> addresses."""
        self.die_after = 0

    def find(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        self.asked.append((method, path, body))
        if (
            self.die_after
            and sum(path in ("/generate", "/v1/completions") for _, path, _ in self.asked) >= self.die_after
        ):
            os._exit(0)
        if self.behind and path == "/get_server_info":
            return 200, {mode: [fetched(f"{url}/server_info") for url in urls] for mode, urls in self.behind.items()}
        if self.behind and path in ("/ready", "/tokenize", "/server_info"):
            return 404, {"detail": "Not Found"}
        for exchange in self.exchanges:
            same = (exchange["method"], exchange["path"]) == (method, path)
            if same and subject(exchange["request"]) == subject(body) and contained(exchange["request"], body):
                return exchange["status"], self.ours(exchange["response"])
        self.strangers.append((method, path, body))
        return 418, {"error": {"message": f"{method} {path} was not recorded"}}

    def ours(self, response: Any) -> Any:
        """The recorded answer with the checkpoint's path as it was started."""
        if self.model_path and isinstance(response, dict):
            if "model_path" in response:
                return {**response, "model_path": self.model_path, **self.changes}
            if response.get("object") == "list":
                return {**response, "data": [{**card, "root": self.model_path} for card in response["data"]]}
        if isinstance(response, list) and response and isinstance(response[0], list):
            return "\n".join([*(line for _, line in response), ""])  # a stream, of times and lines
        return "\n".join(response) if isinstance(response, list) and path_lines(response) else response


def fetched(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as reply:
        return json.load(reply)


def path_lines(response: Sequence[Any]) -> bool:
    """Recorded metrics are a list of lines."""
    return all(isinstance(line, str) for line in response)


def subject(request: Any) -> Any:
    """What is asked about."""
    return (
        [request.get(key) for key in ("input_ids", "prompt", "messages", "return_token_ids")]
        if isinstance(request, dict)
        else None
    )


def contained(recorded: Any, asked: Any) -> bool:
    """Every key that was recorded was asked with the same value; more may be asked."""
    if isinstance(recorded, dict) and isinstance(asked, dict):
        skip = (
            "model",
            "return_token_strs",
            "top_logprobs_num",
            "return_text_in_logprobs",
            "logprobs",
            "return_tokens_as_token_ids",
        )
        return all(key in skip or (key in asked and contained(part, asked[key])) for key, part in recorded.items())
    return bool(recorded == asked)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Exchanges  # type: ignore[assignment]

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        status, content = self.server.find(self.command, self.path, json.loads(raw) if raw else None)
        body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        pass


def after(argv: Sequence[str], flag: str) -> str:
    return argv[argv.index(flag) + 1] if flag in argv else ""


def behind(argv: Sequence[str], flag: str) -> list[str]:
    return [argv[at + 1] for at, word in enumerate(argv) if word == flag]


def main(argv: list[str]) -> None:
    say = os.environ.get
    if any(word.startswith("--help") for word in argv):
        print("usage: fake [-h]\n" + "\n".join(f"  [{flag} VALUE]" for flag in (say("FAKE_FLAGS") or "").split()))
        return
    role = "router" if "--pd-disaggregation" in argv else after(argv, "--disaggregation-mode")
    ours = say("FAKE_ONLY") in (None, role)
    if path := say("FAKE_ARGV"):
        with Path(path).open("a") as file:
            file.write(json.dumps([os.getpid(), role, *argv]) + "\n")
    if path := say("FAKE_CHILD"):
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
        Path(path).write_text(str(child.pid))
    if path := say("FAKE_LOG"):
        lines = [line for line in Path(path).read_text("utf-8").splitlines() if not line.startswith("# ")]
        print("\n".join(lines), file=sys.stderr, flush=True)
    if ours and say("FAKE_EXIT"):
        sys.exit(int(str(say("FAKE_EXIT"))))
    if ours and say("FAKE_HANG"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
    server = Exchanges(Path(str(say("FAKE_WIRE"))), int(argv[argv.index("--port") + 1]))
    server.model_path = after(argv, "--model-path") or after(argv, "--model")
    if role in ("prefill", "decode"):
        server.changes = {"disaggregation_mode": role, "port": server.server_port}
    server.changes |= json.loads(say("FAKE_SAY") or "{}") if ours else {}
    server.behind = {mode: behind(argv, f"--{mode}") for mode in ("prefill", "decode")} if role == "router" else {}
    server.die_after = int(say("FAKE_DIE_AFTER") or 0)
    server.serve_forever(poll_interval=0.05)


if __name__ == "__main__":
    main(sys.argv[1:])
