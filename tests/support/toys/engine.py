"""A bigram model over 64 tokens as an engine of its own (`kind: toys.engine`), with the faults a test asks for.

In-process and exact, so that whole runs take a second. It writes down every answer it gave where asked to:
that file is what the `replay` engine answers from.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from evalrig.engine import Capabilities, Chat, Engine, Launch, Sampling, Scoring
from evalrig.engines.replay import asked
from evalrig.errors import EngineError
from evalrig.loadgen.schedule import Address
from evalrig.loadgen.target import Gauges, Serving
from evalrig.troubles import SGLANG, SGLANG_WORKS
from evalrig.types import Capacity, Completion, Fingerprint, Message, Tool, ToolCall, Variant

VOCABULARY = 64
END = 1


def table(noise: float = 0.0, seed: int = 0) -> np.ndarray:
    """Log-probabilities [V, V]: of the next token, by the one before."""
    logits = 3.0 * np.random.default_rng(7).standard_normal((VOCABULARY, VOCABULARY))
    logits += noise * np.random.default_rng(1000 + seed).standard_normal((VOCABULARY, VOCABULARY))
    exact = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return (np.round(exact * 65536) / 65536).astype(np.float32)  # on a grid, so that every machine has the same bits


def tokens(text: str) -> tuple[int, ...]:
    """One token a character."""
    return tuple(2 + ord(letter) % (VOCABULARY - 2) for letter in text)


@dataclass(kw_only=True)
class ToyOptions:
    noise: float = 0.0
    """Standard deviation of what is added to the logits: the variant's damage."""
    seed: int = 0
    apart: float = 0.0
    """As noise, but on the decode path alone: what a prefill that reads no quantised cache does not see."""
    jitter: float = 0.0
    """As noise, but other in every process: what a real reference does to itself."""
    says_weights: str = "bf16"
    says_kv_cache: str = "bf16"
    template: str = "<{role}>{content}\n"
    shows_tools: bool = True
    """Tools and calls are in the prompt."""
    delay: float = 0.0
    """Seconds a call takes."""
    fail_start: str = ""
    """Do not start, for this reason."""
    die_after: int = 0
    """Be dead from this call on."""
    hang_after: int = 0
    """Answer nothing from this call on."""
    faulty_starts: int = 0
    """So many processes of the variant die or hang, the later ones do not; 0: all do."""
    says: list[str] = field(default_factory=list[str])
    """Lines of its log: one more with every scoring."""
    refuse_every: int = 0
    """Every so many scorings fail, as an overloaded engine's would."""
    refuse_answers: int = 0
    """Every so many answers fail."""
    refuse_chats: bool = False
    """Every chat fails."""
    nan_every: int = 0
    """Every so many scorings hold a NaN."""
    step: float = 0.01
    """Seconds a token takes when it is loaded."""
    flaw: str = ""
    """What is wrong with it under load: `short` answers, `cached` prompts, `failing` requests, `dead` after a block, `hung` in one."""
    record: str = ""
    """Append every question with its answer to this file."""


class Toy(Engine):
    """Faults count `generate`, `score` and `tokenize` alone."""

    Options = ToyOptions
    capabilities: ClassVar[Capabilities] = Capabilities(
        prompt_logprobs=True,
        top_logprobs=-1,
        seed=True,
        cached_prefix=True,
        decode_logprobs=-1,
        chat=True,
        tools=True,
        tool_prompts=True,
        load=True,
        primed=True,
    )
    troubles = SGLANG
    at_work = SGLANG_WORKS
    starts: ClassVar[int] = 0
    processes: ClassVar[Counter[Path]] = Counter()
    """Starts by log: a log belongs to one variant of one run."""

    def __init__(self, variant: Variant, options: ToyOptions, launch: Launch) -> None:
        super().__init__(variant, options, launch)
        self.options: ToyOptions = options
        self.calls = self.scorings = self.answers = self.flushes = 0
        self.faulty = True
        self.table: np.ndarray | None = None
        self.decoding: np.ndarray | None = None
        self.lines: list[bytes] = []

    async def start(self) -> None:
        if self.options.fail_start:
            raise EngineError(f"{self.variant.name}: {self.options.fail_start}")
        Toy.starts += 1
        Toy.processes[self.launch.log] += 1
        self.faulty = not 0 < self.options.faulty_starts < Toy.processes[self.launch.log]
        noise = float(np.hypot(self.options.noise, self.options.jitter))
        seed = self.options.seed + (Toy.starts if self.options.jitter else 0)
        self.table, self.decoding = table(noise, seed), table(float(np.hypot(noise, self.options.apart)), seed)
        if self.options.record:
            said = {"fingerprint": await self.fingerprint(), "capacity": await self.capacity()}
            self.lines.append(msgspec.json.encode(said))

    async def stop(self) -> None:
        if self.table is not None and self.options.record:
            with Path(self.options.record).open("ab") as file:
                file.writelines(line + b"\n" for line in self.lines)
        self.table = None

    def alive(self) -> bool:
        return self.table is not None and not (self.faulty and 0 < self.options.die_after <= self.calls)

    async def fingerprint(self) -> Fingerprint:
        return Fingerprint(
            engine="toy", version="1", weights=self.options.says_weights, kv_cache=self.options.says_kv_cache
        )

    async def capacity(self) -> Capacity:
        wide = self.options.says_kv_cache == "bf16"
        return Capacity(kv_tokens=1000 if wide else 2000, kv_bytes_per_token=4.0 if wide else 2.0, weight_bytes=8192)

    async def tokenize(
        self, prompt: str | Sequence[Message], tools: Sequence[Tool] = (), answer: bool = True
    ) -> tuple[int, ...]:
        """The template closes no turn and opens none: `answer` makes no difference."""
        await self._call()
        if isinstance(prompt, str):
            return self._said(tokens(prompt), "tokenize", prompt)
        text = "".join(f"{tool.name};" for tool in tools if self.options.shows_tools)
        text += "".join(self._shown(message) for message in prompt)
        return self._said(tokens(text), "tokenize", [[m.role, m.content] for m in prompt])

    async def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(chr(33 + token) for token in ids)

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        await self._call()
        self.answers += 1
        if self.options.refuse_answers and self.answers % self.options.refuse_answers == 0:
            raise EngineError(f"{self.variant.name}: HTTP 400")
        answer = self._sampled(ids, sampling)
        self._said(answer, "generate", list(ids), sampling.max_tokens, sampling.seed)
        return self._completion(answer, ids)

    async def decode(self, ids: Sequence[int], sampling: Sampling, top_k: int) -> tuple[Completion, Scoring]:
        scored, self.table = self.table, self.decoding if self.alive() else None
        answer = self._sampled(ids, sampling)
        scoring, lists = self._lists([*ids, *answer["token_ids"]], len(ids), top_k)
        self.table = scored
        self._said({**answer, **lists}, "decode", list(ids), sampling.max_tokens, sampling.seed, top_k)
        return self._completion({**answer, "logprobs": lists["logprobs"]}, ids), scoring

    def _sampled(self, ids: Sequence[int], sampling: Sampling) -> dict[str, Any]:
        rng = np.random.default_rng(list(ids) if sampling.seed is None else sampling.seed)
        new: list[int] = []
        while len(new) < sampling.max_tokens and END not in new:
            before = new[-1] if new else ids[-1]
            p = np.exp(self._rows([before])[0].astype(np.float64))
            new.append(int(rng.choice(VOCABULARY, p=p / p.sum())))
        finish = "stop" if new[-1] == END else "length"
        return {"text": "".join(map(chr, (33 + t for t in new))), "token_ids": new, "finish": finish}

    def _completion(self, answer: dict[str, Any], ids: Sequence[int]) -> Completion:
        counts = {"prompt_tokens": len(ids), "completion_tokens": len(answer["token_ids"])}
        return msgspec.convert({**counts, **answer}, Completion)

    async def score(self, ids: Sequence[int], start: int, top_k: int = 0) -> Scoring:
        await self._call()
        self.scorings += 1
        if self.scorings <= len(self.options.says):
            self.launch.log.parent.mkdir(parents=True, exist_ok=True)
            with self.launch.log.open("a") as log:
                log.write(f"{self.options.says[self.scorings - 1]}\n")
        if self.options.refuse_every and self.scorings % self.options.refuse_every == 0:
            raise EngineError(f"{self.variant.name}: HTTP 503")
        scoring, lists = self._lists(ids, start, top_k)
        if self.options.nan_every and self.scorings % self.options.nan_every == 0:
            scoring.logprobs[0] = lists["logprobs"][0] = np.nan
        self._said(lists if top_k else {"logprobs": lists["logprobs"]}, "score", list(ids), start, top_k)
        return scoring

    async def score_cached(self, ids: Sequence[int], start: int, top_k: int = 0) -> Scoring:
        scoring, lists = self._lists(ids, start, top_k)
        self._said(lists if top_k else {"logprobs": lists["logprobs"]}, "score_cached", list(ids), start, top_k)
        return scoring

    def _lists(self, ids: Sequence[int], start: int, top_k: int) -> tuple[Scoring, dict[str, Any]]:
        rows = self._rows(ids[start - 1 : -1])
        logprobs = rows[np.arange(len(rows)), list(ids[start:])].copy()
        k = VOCABULARY if top_k < 0 else top_k
        order = np.argsort(-rows, axis=1, kind="stable")[:, :k].astype(np.int32)
        top = np.take_along_axis(rows, order, 1)
        answer = {"logprobs": logprobs.tolist(), "top_ids": order.tolist(), "top_logprobs": top.tolist()}
        made = Scoring(token_ids=np.asarray(ids[start:], np.int32), logprobs=logprobs, top_ids=order, top_logprobs=top)
        return made, answer

    async def chat(self, chat: Chat, sampling: Sampling) -> Completion:
        """A tool is called whenever there is one and no result yet. Not counted in `calls`: preflight alone has a dozen."""
        if not self.alive() or self.options.refuse_chats:
            raise EngineError(f"{self.variant.name}: HTTP 404")
        prompt = tokens("".join(self._shown(message) for message in chat.messages))
        prompt += tokens("".join(tool.name for tool in chat.tools if chat.tool_choice != "none"))
        wanted = chat.tools if chat.tool_choice != "none" and chat.messages[-1].role != "tool" else ()
        if wanted:
            named = [tool for tool in wanted if tool.name == chat.tool_choice] or list(wanted)
            arguments = json.dumps({key: "a" for key in named[0].parameters.get("required", ())})
            new, text, finish = list(tokens(arguments)), "", "tool_calls"
            message = Message(
                role="assistant",
                content="",
                tool_calls=(ToolCall(id="call_0", name=named[0].name, arguments=arguments),),
            )
        else:
            new, text, finish = self._spoken(prompt, sampling)
            message = Message(role="assistant", content=text)
        counts = {"prompt_tokens": len(prompt), "completion_tokens": len(new)}
        answer = {**counts, "text": text, "token_ids": new, "finish": finish, "message": msgspec.to_builtins(message)}
        self._said(answer, *asked(chat, sampling))
        return msgspec.convert(answer, Completion)

    async def serving(self) -> Serving:
        """Reached by the stand-in client of `toys.load_client` alone, which reads all it must know in the body."""
        body = {"model": self.variant.name, "step": self.options.step, "flaw": self.options.flaw if self.faulty else ""}
        return Serving(completions=Address(host="toy", port=1), body=body, fixed_length=True, flushes=True)

    async def flush(self) -> bool:
        self.flushes += 1
        return True

    async def gauges(self) -> Gauges | None:
        if self.faulty and self.options.flaw == "dead" and self.flushes:
            await self.stop()
            raise EngineError(f"{self.variant.name}: connection refused")
        return Gauges(at=0.0, running=1.0, waiting=float(self.flushes), kv_usage=0.5, phases={"queue": (1.0, 2.0)})

    def _shown(self, message: Message) -> str:
        calls = "".join(f"({call.name}{call.arguments})" for call in message.tool_calls if self.options.shows_tools)
        return self.options.template.format(role=message.role, content=f"{message.content}{calls}")

    def _spoken(self, prompt: Sequence[int], sampling: Sampling) -> tuple[list[int], str, str]:
        """Tokens, text and ending of what is said after a prompt."""
        rng, new = np.random.default_rng(sampling.seed), list[int]()
        while len(new) < sampling.max_tokens and END not in new:
            row = self._rows([new[-1] if new else prompt[-1]])[0].astype(np.float64)
            p = np.exp(row) / np.exp(row).sum()
            new.append(int(rng.choice(VOCABULARY, p=p)) if sampling.temperature else int(row.argmax()))
            text = "".join(chr(33 + token) for token in new)
            for stop in sampling.stop:
                if stop in text:
                    return new, text[: text.index(stop)], "stop"
        return new, "".join(chr(33 + token) for token in new), "stop" if new[-1] == END else "length"

    def _rows(self, before: Sequence[int]) -> np.ndarray:
        if self.table is None:
            raise EngineError(f"{self.variant.name}: not started")
        return self.table[list(before)]

    async def _call(self) -> None:
        self.calls += 1
        if self.options.delay:
            await asyncio.sleep(self.options.delay)
        if self.faulty and 0 < self.options.hang_after <= self.calls:
            await asyncio.Event().wait()
        if not self.alive():
            raise EngineError(f"{self.variant.name}: connection refused")

    def _said(self, answer: Any, *ask: Any) -> Any:
        if self.options.record:
            self.lines.append(msgspec.json.encode({"ask": ask, "answer": answer}))
        return answer
