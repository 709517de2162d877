"""Distance of the token distributions: the reference answers by sampling, and every variant scores the very same tokens.

On-policy (sampled at temperature 1, nothing cut) so that the mean over tokens estimates the KL divergence
between the two models' answers. Each position keeps the top-K of both sides and one bucket for the rest; on an
audit sample the whole vocabulary is kept, so that what the bucket hides is measured.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np

from evalrig.content import content_dir
from evalrig.engine import Capabilities, Engine, Sampling
from evalrig.errors import UsageError
from evalrig.suite import Attempt, Suite, ids_sha256
from evalrig.types import Completion, Message, Metric, Sample, State, Trace, Trajectory

LEGS = ("prefill", "cached_prefix")


@dataclass(kw_only=True)
class KlOptions:
    """Keys of `suites.<name>.options`."""

    prompts: str = ""
    """JSONL of {id, kind, messages}; default: the 48 that evalrig ships."""
    tokens: int = 64
    """Longest reference answer."""
    top_k: int = 50
    audit_share: float = 1 / 3
    """Share of the prompts on which a few positions are scored over the whole vocabulary, where the engine can."""
    audit_tokens: int = 4
    """Such positions a prompt."""
    leg: str = "prefill"
    """How the tokens are scored. `prefill`: with their prompt as one, nothing read from a prefix cache; on many back ends
    that reads no quantised KV cache. `cached_prefix`: after their prompt was read from the KV cache, as while decoding."""


class _Prompt(msgspec.Struct):
    id: str
    kind: str
    messages: tuple[Message, ...]


class Kl(Suite):
    """KL divergence per token, through the serving path."""

    Options = KlOptions
    family = "token distribution"
    traced = True
    brief: ClassVar[Mapping[str, int]] = {"tokens": 16}
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric(name="kl", kind="distance", units="nats/token"),
        Metric(name="logprob", kind="continuous", units="nats/token"),
    )

    def __init__(self, name: str, options: KlOptions) -> None:
        super().__init__(name, options)
        self.options: KlOptions = options
        if not (
            options.tokens >= 1 and options.top_k >= 1 and 0 < options.audit_share <= 1 and options.audit_tokens >= 1
        ):
            raise UsageError(
                f"suites.{name}.options: tokens, top_k and audit_tokens are at least 1, audit_share is in (0, 1]; correct it"
            )

        if options.leg not in LEGS:
            raise UsageError(f"suites.{name}.options.leg: no leg {options.leg!r}; give {' or '.join(LEGS)}")

    def needs(self) -> Capabilities:
        """Top-K lists of given tokens. No seed: the reference answers once, and what it said is kept for all."""
        cached = self.options.leg == "cached_prefix"
        return Capabilities(prompt_logprobs=True, top_logprobs=self.options.top_k, cached_prefix=cached)

    def samples(self) -> list[Sample]:
        """One per prompt, each its own cluster."""
        path = (
            Path(self.options.prompts).expanduser()
            if self.options.prompts
            else content_dir("suites") / "kl" / "prompts.jsonl"
        )
        where = f"suites.{self.name}.options.prompts"
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise UsageError(f"{where}: cannot read {str(path)!r}: {error.strerror}; give a JSONL file") from error
        rows: list[Sample] = []
        for number, line in enumerate(filter(None, lines), 1):
            try:
                prompt = msgspec.json.decode(line, type=_Prompt)
            except msgspec.MsgspecError as error:
                raise UsageError(f"{where}: {path} line {number}: {error}; a line holds id, kind, messages") from error
            rows.append(Sample(id=prompt.id, messages=prompt.messages, tags=(prompt.kind,)))
        return rows

    async def trace(self, engine: Engine, sample: Sample, epoch: int, seed: int) -> Trace:
        """The reference's answer, temperature 1, nothing cut from the distribution."""
        prompt = await engine.tokenize(sample.messages)
        answer = await engine.generate(prompt, Sampling(max_tokens=self.options.tokens, temperature=1.0, seed=seed))
        return Trace(
            sample=sample.id,
            epoch=epoch,
            prompt_ids=prompt,
            token_ids=answer.token_ids,
            text=answer.text,
            finish=answer.finish,
        )

    async def attempt(self, engine: Engine, sample: Sample, epoch: int, trace: Trace | None) -> Attempt:
        """Score the reference's tokens; the prompt is tokenised again so that a differing template shows."""
        if trace is None:
            raise ValueError(f"{self.name}: {sample.id} has no trace")
        if not trace.token_ids:
            error = "the reference answered no token: there is nothing to compare"
            return Attempt(trajectory=Trajectory(error=error), state=State.UNSCORED)
        own = await engine.tokenize(sample.messages)
        ids = [*trace.prompt_ids, *trace.token_ids]
        score = engine.score_cached if self.options.leg == "cached_prefix" else engine.score
        scoring = await score(ids, len(trace.prompt_ids), self.options.top_k)
        audit = None
        if (window := self._window(trace)) and engine.able(engine.options).top_logprobs == -1:
            audit = await score(ids[: window[1]], window[0], -1)
        turn = Completion(text=trace.text, prompt_tokens=len(trace.prompt_ids), completion_tokens=len(trace.token_ids))
        mean = float(scoring.logprobs.mean(dtype=np.float64))
        return Attempt(
            trajectory=Trajectory(turns=(turn,)),
            scores={"logprob": mean, "tokens": float(len(trace.token_ids))} if np.isfinite(mean) else {},
            prompt_sha256=ids_sha256(own),
            tokens=scoring,
            audit=audit,
            retries=scoring.retries,
        )

    def _window(self, trace: Trace) -> tuple[int, int] | None:
        """Start and stop of the audited positions, or None; the same for every variant, wherever it runs."""
        digest = hashlib.sha256(f"{self.name}/{trace.sample}/{trace.epoch}".encode()).digest()
        if int.from_bytes(digest[:4], "big") / 2**32 >= self.options.audit_share:
            return None
        room = max(0, len(trace.token_ids) - self.options.audit_tokens)
        start = len(trace.prompt_ids) + int.from_bytes(digest[4:8], "big") % (room + 1)
        return start, min(start + self.options.audit_tokens, len(trace.prompt_ids) + len(trace.token_ids))
