"""Distance of the token distributions: the reference answers by sampling, and every variant scores the very same tokens.

On-policy (sampled at temperature 1, nothing cut) so that the mean over tokens estimates the KL divergence
between the two models' answers. Each position keeps the top-K of both sides and one bucket for the rest; on an
audit sample the whole vocabulary is kept, so that what the bucket hides is measured. On a few prompts each variant
answers by itself and then scores its own tokens: how far the way they are scored lies from decoding.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from evalrig.analysis.kl import merged_bucket
from evalrig.content import content_dir
from evalrig.engine import Capabilities, Engine, Penalties, Sampling, Scoring
from evalrig.errors import EngineError, UsageError
from evalrig.sources import borrowed, prompts, texts, with_tools, written
from evalrig.suite import Attempt, Grader, Suite, ids_sha256
from evalrig.turns import Turn, asked, finished
from evalrig.types import FIXED, SUCCESS, UNGRADED, Completion, Metric, Sample, State, Trace, Trajectory

LEGS = ("prefill", "cached_prefix", "decode")
NONE = "none"
"""Value of `prompts` for none of its own."""


@dataclass(kw_only=True)
class KlOptions:
    """Keys of `suites.<name>.options`."""

    prompts: str = ""
    """JSONL of {id, kind, messages or prompt}; default: the 48 that evalrig ships. `none`: only what the next two give."""
    suites: list[str] = field(default_factory=list[str])
    """Suites of this run whose samples are prompts too."""
    texts: str = ""
    """JSONL of {id, text}: texts that are scored as they are."""
    tokens: int = 64
    """Longest reference answer."""
    top_k: int = 50
    audit_share: float = 1 / 3
    """Share of the prompts on which a few positions are scored over the whole vocabulary, where the engine can."""
    audit_tokens: int = 7
    """Such positions a prompt."""
    path_prompts: int = 16
    """Prompts on which each variant scores its own answer, to tell how far scoring lies from decoding; 0: not looked at."""
    leg: str = "prefill"
    """How the tokens are scored. `prefill`: with their prompt as one, nothing read from a prefix cache; on many back ends
    that reads no quantised KV cache. `cached_prefix`: after their prompt was read from the KV cache, as while decoding.
    `decode`: each variant answers, with the lists it draws from, and the reference scores those answers by prefill."""


class Kl(Suite):
    """KL divergence per token, through the serving path."""

    Options = KlOptions
    family = "token distribution"
    brief: ClassVar[Mapping[str, int]] = {"tokens": 16}
    metrics: tuple[Metric, ...] = (
        Metric(name="kl", kind="distance", units="nats/token"),
        Metric(name="logprob", kind="continuous", units="nats/token"),
    )
    """Of answers that every variant gives itself there is no `logprob`: each is likely under its own."""

    def __init__(self, name: str, options: KlOptions) -> None:
        super().__init__(name, options)
        self.options: KlOptions = options
        self.sources = tuple(options.suites)
        self.rescored = options.leg == "decode"
        self.traced = not self.rescored
        if self.rescored:
            self.metrics = self.metrics[:1]
        self._own_path: frozenset[str] = frozenset()
        self._questions: dict[str, tuple[Grader, Sample]] = {}
        self._tools = False
        if not (
            options.tokens >= 1 and options.top_k >= 1 and 0 < options.audit_share <= 1 and options.audit_tokens >= 1
        ):
            raise UsageError(
                f"suites.{name}.options: tokens, top_k and audit_tokens are at least 1, audit_share is in (0, 1]; correct it"
            )
        if options.path_prompts < 0:
            raise UsageError(f"suites.{name}.options.path_prompts: {options.path_prompts} prompts; give 0 or more")
        if options.leg not in LEGS:
            raise UsageError(f"suites.{name}.options.leg: no leg {options.leg!r}; give {' or '.join(LEGS)}")

    def needs(self) -> Capabilities:
        """Top-K lists of given tokens. No seed: the reference answers once, and what it said is kept for all."""
        if self.rescored:
            return Capabilities(decode_logprobs=self.options.top_k, tool_prompts=self._tools)
        return Capabilities(
            prompt_logprobs=True,
            top_logprobs=self.options.top_k,
            cached_prefix=self.options.leg == "cached_prefix",
            tool_prompts=self._tools,
        )

    def rescoring(self) -> Capabilities:
        """Top-K lists of given tokens, from the reference alone."""
        return Capabilities(prompt_logprobs=True, top_logprobs=self.options.top_k) if self.rescored else Capabilities()

    def samples(self) -> list[Sample]:
        """One per prompt or text, each its own cluster."""
        own, where = self.options.prompts, f"suites.{self.name}.options"
        shipped = content_dir("suites") / "kl" / "prompts.jsonl"
        rows = [] if own == NONE else prompts(Path(own).expanduser() if own else shipped, f"{where}.prompts")
        if self.options.texts:
            rows += texts(Path(self.options.texts).expanduser(), f"{where}.texts")
        return self._askable(rows)

    def _askable(self, rows: list[Sample]) -> list[Sample]:
        if self.rescored and (fixed := next((row.id for row in rows if FIXED in row.tags), None)):
            where = f"suites.{self.name}.options.leg"
            raise UsageError(f"{where}: `decode` scores what variants answer, and {fixed!r} is fixed; leave it out")
        return rows

    def draw(self, lent: Mapping[str, Sequence[Sample]], graders: Mapping[str, Grader]) -> list[Sample]:
        """See `Suite.draw`."""
        drawn = self.samples()
        for name, questions in lent.items():
            rows = self._askable(borrowed(name, questions, f"suites.{self.name}.options.suites"))
            drawn += rows
            if name in graders:
                self._questions |= {row.id: (graders[name], own) for row, own in zip(rows, questions, strict=True)}
        return drawn

    def settle(self, chosen: Sequence[Sample]) -> None:
        """The first prompts are those on which the path is checked: in the seeded order of the run that is a draw."""
        ids = [sample.id for sample in chosen if not _is_text(sample)]
        self._own_path = frozenset(ids[: self.options.path_prompts])
        self._tools = any(with_tools(sample) for sample in chosen)

    async def trace(self, engine: Engine, sample: Sample, epoch: int, seed: int) -> Trace:
        """The reference's answer, temperature 1, nothing cut from the distribution; of a fixed stream, what was given."""
        turn = await _turn(engine, sample)
        if FIXED in sample.tags:
            text, ids = sample.prompt or written(sample.messages[-1]), turn.given
            return Trace(sample=sample.id, epoch=epoch, prompt_ids=turn.before, token_ids=ids, text=text, finish=FIXED)
        answer = await engine.generate(turn.before, self._whole(seed))
        return Trace(
            sample=sample.id,
            epoch=epoch,
            prompt_ids=turn.before,
            token_ids=answer.token_ids,
            text=answer.text,
            finish=answer.finish,
        )

    async def attempt(self, engine: Engine, sample: Sample, epoch: int, trace: Trace | None) -> Attempt:
        """Score the reference's tokens; the prompt is tokenised again so that a differing template shows."""
        if self.rescored:
            return await self._answered(engine, sample, epoch)
        if trace is None:
            raise ValueError(f"{self.name}: {sample.id} has no trace")
        own = await _turn(engine, sample)
        if own.fault or not trace.token_ids:
            error = own.fault or "the reference answered no token: there is nothing to compare"
            return Attempt(trajectory=Trajectory(error=error), state=State.UNSCORED)
        ids = [*trace.prompt_ids, *trace.token_ids]
        scoring = await self._score(engine, ids, len(trace.prompt_ids), self.options.top_k)
        audit = None
        if (window := self._window(trace)) and engine.able(engine.options).top_logprobs == -1:
            audit = await self._score(engine, ids[: window[1]], window[0], -1)
        turn = Completion(text=trace.text, prompt_tokens=len(trace.prompt_ids), completion_tokens=len(trace.token_ids))
        mean = float(scoring.logprobs.mean(dtype=np.float64))
        scores = {"logprob": mean, "tokens": float(len(trace.token_ids))} if np.isfinite(mean) else {}
        return Attempt(
            trajectory=Trajectory(turns=(turn,)),
            scores={
                **scores,
                **self._success(engine, trace),
                **await self._path(engine, sample, epoch, trace.prompt_ids),
            },
            prompt_sha256=ids_sha256([*own.before, *own.given]),
            tokens=scoring,
            audit=audit,
            retries=scoring.retries,
        )

    def _success(self, engine: Engine, trace: Trace) -> dict[str, float]:
        """How right the reference's own answer is, by the grader of the suite that lent the question: filed once, with it."""
        if engine.variant.role != "reference" or trace.sample not in self._questions:
            return {}
        grade, question = self._questions[trace.sample]
        said = Completion(
            text=trace.text, token_ids=trace.token_ids, completion_tokens=len(trace.token_ids), finish=trace.finish
        )
        score = grade(question, said)
        if score is None:
            return {UNGRADED: 1.0}
        if not 0.0 <= score <= 1.0:
            raise UsageError(
                f"suites.{self.name}: an answer to {trace.sample!r} was graded {score}; a grade lies in 0..1"
            )
        return {SUCCESS: score}

    async def _answered(self, engine: Engine, sample: Sample, epoch: int) -> Attempt:
        """The variant's own answer, with the list that each of its tokens was drawn from."""
        turn = await _turn(engine, sample)
        if turn.fault:
            return Attempt(trajectory=Trajectory(error=turn.fault), state=State.UNSCORED)
        prompt = turn.before
        seed = _seed(f"{self.name}/{sample.id}/{epoch}")  # the same for all: answers part only where variants do
        said, decoded = await engine.decode(prompt, self._whole(seed), self.options.top_k)
        if not said.token_ids:
            error = "it answered no token: there is nothing to compare"
            return Attempt(trajectory=Trajectory(error=error), state=State.UNSCORED)
        if tuple(map(int, decoded.token_ids)) != said.token_ids:
            raise EngineError(f"{engine.variant.name}: the lists are of other tokens than those it answered")
        return Attempt(
            trajectory=Trajectory(turns=(replace(said, logprobs=()),)),
            scores={"tokens": float(len(said.token_ids))},
            prompt_sha256=ids_sha256(prompt),
            tokens_sha256=ids_sha256([*prompt, *said.token_ids]),
            tokens=decoded,
            retries=said.retries,
        )

    async def rescore(self, engine: Engine, sample: Sample, said: Completion) -> Attempt:
        """Lists of the reference, by prefill, at each token that another variant answered."""
        prompt = (await _turn(engine, sample)).before
        ids = [*prompt, *said.token_ids]
        scoring = await self._score(engine, ids, len(prompt), self.options.top_k)
        turn = Completion(text=said.text, prompt_tokens=len(prompt), completion_tokens=len(said.token_ids))
        return Attempt(
            trajectory=Trajectory(turns=(turn,)),
            scores={"tokens": float(len(said.token_ids))},
            prompt_sha256=ids_sha256(prompt),
            tokens_sha256=ids_sha256(ids),
            tokens=scoring,
            retries=scoring.retries,
        )

    async def _score(self, engine: Engine, ids: Sequence[int], start: int, top_k: int) -> Scoring:
        """By the leg in use; an answer about other tokens than those given is an engine's failure."""
        score = engine.score_cached if self.options.leg == "cached_prefix" else engine.score
        scoring = await score(ids, start, top_k)
        if tuple(map(int, scoring.token_ids)) != tuple(ids[start:]):
            raise EngineError(f"{engine.variant.name}: the engine scored other tokens than those it was given")
        return scoring

    async def _path(self, engine: Engine, sample: Sample, epoch: int, prompt: Sequence[int]) -> dict[str, float]:
        """Scores `path_kl` (nats per token: decoding || scoring, of one and the same engine), `path_tokens`, `path_broken`."""
        listed = engine.able(engine.options).decode_logprobs
        if sample.id not in self._own_path or not listed or engine.variant.role == "again":
            return {}
        width = self.options.top_k if listed < 0 else min(self.options.top_k, listed)
        said, decoded = await engine.decode(prompt, self._whole(_seed(f"{self.name}/{sample.id}/{epoch}/path")), width)
        if not said.token_ids:
            return {}
        scored = await self._score(engine, [*prompt, *said.token_ids], len(prompt), width)
        whole = _readable(decoded) & _readable(scored)
        kl = merged_bucket(
            decoded.top_ids[whole], decoded.top_logprobs[whole], scored.top_ids[whole], scored.top_logprobs[whole]
        ).kl
        kept = kl[np.isfinite(kl)]
        counts = {"path_tokens": float(len(whole)), "path_broken": float(len(whole) - len(kept))}
        return {**counts, "path_kl": float(kept.mean())} if len(kept) else counts

    def _whole(self, seed: int) -> Sampling:
        """The distribution as it is: only its own tokens make the mean over tokens the KL of answers."""
        return Sampling(
            max_tokens=self.options.tokens,
            temperature=1.0,
            top_p=1.0,
            top_k=-1,
            min_p=0.0,
            penalties=Penalties(),
            seed=seed,
        )

    def _window(self, trace: Trace) -> tuple[int, int] | None:
        """Start and stop of the audited positions, or None; the same for every variant, wherever it runs."""
        digest = hashlib.sha256(f"{self.name}/{trace.sample}/{trace.epoch}".encode()).digest()
        if int.from_bytes(digest[:4], "big") / 2**32 >= self.options.audit_share:
            return None
        room = max(0, len(trace.token_ids) - self.options.audit_tokens)
        start = len(trace.prompt_ids) + int.from_bytes(digest[4:8], "big") % (room + 1)
        return start, min(start + self.options.audit_tokens, len(trace.prompt_ids) + len(trace.token_ids))


async def _turn(engine: Engine, sample: Sample) -> Turn:
    """What comes before the first scored token, and the tokens given after it: none where the reference answers."""
    if with_tools(sample):
        return await (finished if FIXED in sample.tags else asked)(engine, sample.messages, sample.tools)
    if FIXED not in sample.tags:
        return Turn(before=await engine.tokenize(sample.messages or sample.prompt))
    if _is_text(sample):
        ids = await engine.tokenize(sample.prompt)
        return Turn(before=ids[:1], given=ids[1:])
    before = await engine.tokenize(sample.messages[:-1])
    return Turn(before=before, given=await engine.tokenize(sample.messages[-1].content))


def _seed(words: str) -> int:
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:4], "big") >> 1


def _is_text(sample: Sample) -> bool:
    return FIXED in sample.tags and not sample.messages


def _readable(rows: Scoring) -> NDArray[np.bool_]:
    """Rows whose list holds numbers and names no token twice."""
    ids = np.sort(rows.top_ids, axis=1)
    return (
        (rows.top_logprobs < np.inf).all(axis=1) & ~(ids[:, 1:] == ids[:, :-1]).any(axis=1) & (rows.logprobs < np.inf)
    )
