"""A program that serves a bigram model in the dialects of SGLang and vLLM, and falls when it is told to.

Whole runs of the launched kinds on it take seconds. Standard library only; run as a script, with the environment:

    FAKE_FLAGS   the flags that `--help` names
    FAKE_KIND    sglang or vllm
    FAKE_TABLE   JSON file of the model: logprobs [V][V] of the next token, by the one before
    FAKE_STATE   folder: `starts` grows by a byte with every start, `pids` by a line with every process
    FAKE_FAULTS  faults of the first start; of the second, and so on (`;`, the last repeats), each `what@call` or
                 `say@call=line`, several with `,`: die, hang (answers nothing, ignores SIGTERM), say (a line of the log);
                 counted are calls for tokens, preflight's among them
    FAKE_CHILD   also start a grandchild, as vLLM's engine core is one
"""

import base64
import json
import math
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

Answer = tuple[int, Any]
END = 1
SGLANG_DEAD = "Subprocess scheduler_0 (pid=7) crashed with exit code -9. Triggering SIGQUIT for cleanup..."
VLLM_DEAD = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above)"


class Bigram:
    """The model. One token a character."""

    def __init__(self, rows: Sequence[Sequence[float]]) -> None:
        self.rows = rows
        self.order = [sorted(range(len(rows)), key=lambda i, row=row: (-row[i], i)) for row in rows]

    def tokens(self, asked: Mapping[str, Any]) -> list[int]:
        """Of a text, or of a conversation."""
        text = asked.get("prompt")
        if text is None:
            text = "".join(f"<{m['role']}>{m['content']}\n" for m in asked["messages"])
        return [2 + ord(letter) % (len(self.rows) - 2) for letter in text]

    def top(self, before: int, k: int) -> list[int]:
        """The k likeliest."""
        return self.order[before][:k]

    def answer(self, ids: Sequence[int], most: int, temperature: float) -> list[int]:
        """Continue; the same ids are continued in the same way."""
        draw, new = random.Random(str(ids)), []
        while len(new) < most and END not in new:
            row = self.rows[new[-1] if new else ids[-1]]
            likely = [math.exp(x) for x in row]
            new += draw.choices(range(len(row)), likely) if temperature else [likely.index(max(likely))]
        return new


class Sglang:
    """SGLang's own routes."""

    def __init__(self, model: Bigram, path: str, argv: Sequence[str]) -> None:
        self.model = model
        kept = ("--kv-cache-dtype", "--dtype")
        self.info: dict[str, Any] = {
            **{"version": "0.5.23", "model_path": path, "device": "cpu", "page_size": 1, "tp_size": 1, "dtype": "bfloat16"},
            "launch_command": " ".join(argv),
            "internal_states": [{"memory_usage": {"weight": 0.1, "kvcache": 0.5, "token_capacity": 4096}}],
        }  # fmt: skip
        said = argv[argv.index(kept[0]) + 1] if kept[0] in argv else "bfloat16"
        self.log = f"KV Cache is allocated. dtype: torch.{said}, #tokens: 4096"

    def get(self, path: str) -> Answer:
        return {"/ready": (200, {}), "/health": (200, {}), "/server_info": (200, self.info)}.get(path, (404, {}))

    def post(self, path: str, asked: Mapping[str, Any]) -> Answer:
        if path == "/tokenize":
            return 200, {"tokens": self.model.tokens(asked)}
        if path != "/generate":
            return 404, {"detail": "Not Found"}
        ids, params = asked["input_ids"], asked["sampling_params"]
        new = (
            self.model.answer(ids, params["max_new_tokens"], params["temperature"]) if params["max_new_tokens"] else []
        )
        given = [ids[-1], *new]
        meta: dict[str, Any] = {
            "finish_reason": {"type": "stop" if new and new[-1] == END else "length"},
            "prompt_tokens": len(ids),
            "cached_tokens": 0,
            "output_token_logprobs": [[self.model.rows[a][b], b, None] for a, b in zip(given, new, strict=False)],
        }
        if new and (k := asked.get("top_logprobs_num")):
            meta["output_top_logprobs"] = [
                [[self.model.rows[a][i], i, None] for i in self.model.top(a, k)] for a in given[:-1]
            ]
        if "logprob_start_len" in asked:
            meta |= self._scored(ids[asked["logprob_start_len"] :], asked["top_logprobs_num"])
        return 200, {"text": "".join(chr(33 + i) for i in new), "output_ids": new, "meta_info": meta}

    def _scored(self, ids: Sequence[int], k: int) -> dict[str, Any]:
        pairs = list(pairwise(ids))
        top = [(a, self.model.top(a, k)) for a, _ in pairs]
        values = [self.model.rows[a][i] for a, best in top for i in best]
        chosen = [i for _, best in top for i in best]
        return {
            "input_token_logprobs": [[None, ids[0], None], *([self.model.rows[a][b], b, None] for a, b in pairs)],
            "input_top_logprobs_shape": [len(pairs), k],
            "input_top_logprobs_null_prefix": 1,
            "input_top_logprobs_val_flat_b64": base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode(),
            "input_top_logprobs_idx_flat_b64": base64.b64encode(struct.pack(f"<{len(chosen)}i", *chosen)).decode(),
        }


class Vllm:
    """vLLM's OpenAI routes."""

    def __init__(self, model: Bigram, path: str, argv: Sequence[str]) -> None:
        self.model = model
        self.card = {"object": "list", "data": [{"id": "toy", "root": path}]}
        said = argv[argv.index("--kv-cache-dtype") + 1] if "--kv-cache-dtype" in argv else "auto"
        labels = f'cache_dtype="{said}",kv_cache_size_tokens="4096",kv_cache_memory_bytes="8192"'
        self.metrics = f"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{labels}}} 1.0\n"
        self.log = "Initializing a V1 LLM engine (v0.32.0) with config: dtype=torch.bfloat16, seed=0, quantization=None"

    def get(self, path: str) -> Answer:
        known: dict[str, Any] = {"/health": {}, "/v1/models": self.card, "/version": {"version": "0.32.0"}}
        return (200, self.metrics) if path == "/metrics" else (200, known[path]) if path in known else (404, {})

    def post(self, path: str, asked: Mapping[str, Any]) -> Answer:
        if path == "/tokenize":
            return 200, {"tokens": self.model.tokens(asked)}
        if path != "/v1/completions":
            return 404, {"detail": "Not Found"}
        ids = asked["prompt"]
        new = self.model.answer(ids, asked["max_tokens"], asked["temperature"])
        given = [ids[-1], *new]
        pairs = list(zip(given, new, strict=False))
        choice: dict[str, Any] = {
            "text": "".join(chr(33 + i) for i in new),
            "finish_reason": "stop" if new[-1] == END else "length",
            "token_ids": new,
            "prompt_token_ids": ids,
            "logprobs": {
                "token_logprobs": [self.model.rows[a][b] for a, b in pairs],
                "top_logprobs": [
                    {f"token_id:{i}": self.model.rows[a][i] for i in {*self.model.top(a, asked.get("logprobs") or 0), b}}
                    for a, b in pairs
                ],
            },
        }  # fmt: skip
        if (k := asked.get("prompt_logprobs")) is not None:
            rows = [
                {str(i): {"logprob": self.model.rows[a][i]} for i in {*self.model.top(a, k), b}}
                for a, b in pairwise(ids)
            ]
            choice["prompt_logprobs"] = [None, *rows]
        return 200, {"choices": [choice], "usage": {"prompt_tokens": len(ids)}}


class Server(ThreadingHTTPServer):
    """Answers, until its fault is due."""

    daemon_threads = True

    def __init__(self, port: int, dialect: Sglang | Vllm, faults: Mapping[int, str]) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.dialect = dialect
        self.faults = faults
        self.calls = 0
        self.counting = threading.Lock()
        self.hangs = self.dead = False

    def answer(self, method: str, path: str, body: Any) -> Answer:
        if path in ("/generate", "/v1/completions"):
            with self.counting:
                self.calls += 1
                what, _, line = self.faults.get(self.calls, "").partition("=")
            if what == "say":
                tell(line)
            self.hangs |= what == "hang"
            if what == "die":
                self._die()
        while self.hangs or (self.dead and isinstance(self.dialect, Sglang)):
            time.sleep(0.05)
        if self.dead:  # vLLM: an error in a 200, then no health, then exit code 0
            return (503, {}) if path == "/health" else (200, {"error": {"message": "EngineCore", "code": 500}})
        return self.dialect.get(path) if method == "GET" else self.dialect.post(path, body)

    def _die(self) -> None:
        self.dead, sglang = True, isinstance(self.dialect, Sglang)
        tell(SGLANG_DEAD if sglang else VLLM_DEAD)
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGKILL) if sglang else os._exit(0)).start()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server  # type: ignore[assignment]
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        status, content = self.server.answer(self.command, self.path, json.loads(raw) if raw else None)
        body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        pass


def tell(line: str) -> None:
    """One line of the log."""
    print(line, file=sys.stderr, flush=True)


def append(path: Path, text: str) -> int:
    """Size of the file afterwards."""
    with path.open("a") as file:
        file.write(text)
        return file.tell()


def faults_of(start: int) -> dict[int, str]:
    """Call number -> what happens then, in the start of that number (1, 2 ...)."""
    starts = os.environ.get("FAKE_FAULTS", "").split(";")
    found: dict[int, str] = {}
    for fault in filter(None, starts[min(start, len(starts)) - 1].split(",")):
        what, _, when = fault.partition("@")
        number, _, line = when.partition("=")
        found[int(number)] = f"{what}={line}"
    return found


def main(argv: Sequence[str]) -> None:
    if any(word.startswith("--help") for word in argv):
        print("usage: fake [-h]\n" + "\n".join(f"  [{flag} VALUE]" for flag in os.environ["FAKE_FLAGS"].split()))
        return
    state = Path(os.environ["FAKE_STATE"])
    append(state / "pids", f"{os.getpid()}\n")
    faults = faults_of(append(state / "starts", "x"))
    if any(fault.startswith("hang") for fault in faults.values()):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.environ.get("FAKE_CHILD"):
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(120)"])
        append(state / "pids", f"{child.pid}\n")
    model = Bigram(json.loads(Path(os.environ["FAKE_TABLE"]).read_text("utf-8")))
    kind, flag = {"sglang": (Sglang, "--model-path"), "vllm": (Vllm, "--model")}[os.environ["FAKE_KIND"]]
    dialect = kind(model, argv[argv.index(flag) + 1], argv)
    tell(dialect.log)
    server = Server(int(argv[argv.index("--port") + 1]), dialect, faults)
    server.serve_forever(poll_interval=0.05)


if __name__ == "__main__":
    main(sys.argv[1:])
