"""The nouns: what is compared, what was asked, what came back, what was concluded. All frozen."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal


class State(StrEnum):
    """How an attempt ended. "Wrong" is a score, not a state."""

    SCORED = "scored"
    UNSCORED = "unscored"
    """The grader failed: missing in both arms until graded again."""
    INFRA = "infra"
    """The engine or the network failed, after identical retries: missing in its own arm."""
    REFUSED = "refused"
    """The model declined: score 0, stays in the denominator."""
    TRUNCATED = "truncated"
    """The token or step limit ended it: score 0, stays in the denominator."""


class Outcome(StrEnum):
    """What is concluded about a candidate, and about a run."""

    GO = "GO"
    NO_GO = "NO-GO"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"
    REHEARSAL = "REHEARSAL"
    """Every step was gone through with few samples on a stand-in: no verdict."""


EXIT_CODES: Mapping[Outcome, int] = {
    Outcome.GO: 0,
    Outcome.NO_GO: 1,
    Outcome.INVALID: 3,
    Outcome.INCONCLUSIVE: 4,
    Outcome.REHEARSAL: 5,
}
SEVERITY = (Outcome.INVALID, Outcome.REHEARSAL, Outcome.NO_GO, Outcome.INCONCLUSIVE, Outcome.GO)
"""Worst first: with several candidates the worst counts."""

REFERENCE = "reference"
AGAIN = "reference_again"
"""The second run of the reference, for A/A."""
NON_FINITE = "the engine gave non-finite logprobs"
"""Error of an attempt that is an engine's arithmetic gone wrong: missing, and reason enough to trust nothing of that arm."""


SPLIT = "split"
"""Flag of a fingerprint: the engine prefills and decodes in different servers."""
SCORING = "scoring"
"""Flag of a fingerprint: how the engine scores given tokens, in a few words, where that is not a prefill."""
FAULTS = "faults"
"""Flag of a fingerprint: what was switched on to make the engine wrong, for a test of the rules."""
NO_ANSWER = "failed"
"""`finish` of a trace whose call failed: missing in every arm."""
RESCORED = "~reference"
"""Ending of a suite's name under which is filed what the reference makes of a variant's own answers. No suite can be named so."""
FIXED = "fixed"
"""Tag of a sample, and `finish` of its trace, whose stream was given and not sampled: no certificate may use it."""
EMULATED = "emulated"
"""Flag of a fingerprint: why the engine's speed is no evidence about the format, in a few words."""
SUCCESS = "success"
"""Score of the reference's record alone: how right its trace answers the question of a suite that lent it, 0..1."""
UNGRADED = "ungraded"
"""Score 1 in place of `SUCCESS`, where the lending suite cannot tell."""


class CheckOutcome(StrEnum):
    """What one gate found."""

    PASSED = "pass"
    FAILED = "fail"
    UNDECIDED = "undecided"
    INVALID = "invalid"
    EXERCISED = "exercised"
    """Applied in a rehearsal: it worked, and decides nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """An engine, weights and flags under one name."""

    name: str
    role: Literal["reference", "candidate", "again"]
    engine: str
    """Kind of engine: a file on the shelf `evalrig/engines/`."""
    weights: str
    """A path, or the name of a fetched model."""
    expect: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the engine must say it is: `weights` and `kv_cache`, as dtype names."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The engine kind's own options, defaults filled in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call (OpenAI's `tools`); `parameters` is a JSON Schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call that the model made, as it came back."""

    id: str
    name: str
    arguments: str
    """As written by the model: JSON if it kept to the format. Hostile until parsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation."""

    role: str
    content: str
    reasoning: str = ""
    """What the engine's reasoning parser kept apart from the content."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    """Of a `tool` message: the call that it answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One question of a suite."""

    id: str
    prompt: str = ""
    messages: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    choices: tuple[str, ...] = ()
    target: str = ""
    cluster: str = ""
    """Samples that share text share a cluster; empty: the sample is its own."""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What an engine answered to one call."""

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Natural log, one per token of `token_ids`; empty where not asked for."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish: str = ""
    """`stop`, `length`, `tool_calls`, `abort`; empty where nothing was generated (scoring)."""
    message: Message | None = None
    """Of a chat: the answer as it is passed back in the next turn, with tool calls and reasoning; else None."""
    seconds: float = 0.0
    retries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a conversation with tools: what was due where that is known, what came, and what was wrong with it."""

    due: str = ""
    """The expected calls as canonical JSON, `[]` for an answer in words; empty: many ways are right here."""
    said: str = ""
    """The calls made as canonical JSON, `[]` for an answer in words; as written where they are no JSON."""
    error: str = ""
    """A word of `steps.ERRORS`; empty: nothing was wrong."""
    named: bool = True
    """The tools called are those due, in their order."""
    valid: bool = True
    """Every call is JSON, names a tool on offer, and fits its schema. An answer in words is."""
    stopped: bool = False
    """An answer in words: the model took the work for done, or gave up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """All calls of one attempt and where they led."""

    turns: tuple[Completion, ...] = ()
    answer: str = ""
    """The final answer as graded, for people to read."""
    error: str = ""
    failure: str = ""
    """How the attempt failed, as one word of its suite's list (`wrong_answer`, `timeout` ...); empty: it did not."""
    steps: tuple[Step, ...] = ()
    """Of a conversation with tools: its steps in order."""
    protocol: str = ""
    """How it was offered tools: `native` or `text` (dialect.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where, when and from which tokens an attempt came."""

    started: str = ""
    """UTC, ISO 8601."""
    seconds: float = 0.0
    retries: int = 0
    prompt_sha256: str = ""
    """Digest of the prompt's token ids: both arms must have seen the same."""
    tokens_sha256: str = ""
    """Digest of the scored token stream, where one was forced."""
    sandbox: str = ""
    """Back end and version under which the model's programs ran; empty: none was run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One attempt: (variant, suite, sample, epoch) is unique in a run."""

    variant: str
    suite: str
    sample: str
    epoch: int
    state: State
    scores: Mapping[str, float] = field(default_factory=dict[str, float])
    trajectory: Trajectory = field(default_factory=Trajectory)
    provenance: Provenance = field(default_factory=Provenance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that befell an engine process while it worked: evidence about the variant, beside its records."""

    time: str
    """UTC, ISO 8601."""
    kind: Literal["crash", "hang", "silent", "restart", "trouble"]
    """`silent`: it runs and answers nothing; `restart`: another process was started in its place; `trouble`: lines of its log."""
    line: str = ""
    """One line: what was seen, or the log's own words."""
    unfinished: int = 0
    """Attempts that were in flight, and are made again."""
    trouble: str = ""
    """Kind of a `trouble` (troubles.py)."""
    count: int = 0
    """Lines of that trouble since the event before: the sum over a variant's events is what was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A reference continuation that every variant scores: the token stream all distances are taken on."""

    sample: str
    epoch: int
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str = ""
    finish: str = ""
    pieces: tuple[str, ...] = ()
    """Text of each token, special ones included; empty: the engine does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number with its interval. None: cannot be given (no pairs, or unbounded)."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    method: str
    units: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A gate applied to one candidate."""

    gate: str
    suite: str
    outcome: CheckOutcome
    reason: str
    estimate: Estimate | None = None
    needed: int | None = None
    """Samples that would settle an undecided check at 80 % power; None where not computable."""
    gating: bool = True
    """False: diagnostic, never changes a verdict."""
    p_go: float = 1.0
    """Small: the loss is below the margin."""
    p_nogo: float = 1.0
    """Small: the loss is above the margin. Joins Holm."""


class Level(StrEnum):
    """What a validity finding does to the verdict."""

    OK = "ok"
    WARN = "warn"
    UNDECIDED = "undecided"
    """That suite cannot count: INCONCLUSIVE at most, never GO."""
    INVALID = "invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One validity rule applied: what was looked at and what was seen."""

    rule: str
    level: Level
    text: str
    candidate: str = ""
    """Empty: concerns the whole run."""
    suite: str = ""
    """Empty: concerns every suite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What an engine says it is."""

    engine: str
    version: str
    weights: str
    """Dtype of the weights in the engine's own words, normalised: bf16, fp8, int4 ..."""
    kv_cache: str
    weights_digest: str = ""
    tokenizer_digest: str = ""
    template_digest: str = ""
    flags: Mapping[str, Any] = field(default_factory=dict[str, Any])
    device: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What a variant costs and holds, and how many requests it runs at once. Zero: the engine does not say."""

    kv_tokens: int = 0
    kv_bytes_per_token: float = 0.0
    weight_bytes: int = 0
    max_requests: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateVerdict:
    """The conclusion about one candidate."""

    outcome: Outcome
    scope: str
    reasons: tuple[str, ...]
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounting:
    """Where the planned samples of one arm of one suite went: planned = scored + ... + absent."""

    variant: str
    suite: str
    planned: int
    states: Mapping[str, int]
    absent: int
    """Planned and without a record: the run did not get there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The conclusion about a run."""

    run: str
    config_sha256: str
    outcome: Outcome
    exit_code: int
    candidates: Mapping[str, CandidateVerdict]
    validity: tuple[Finding, ...]
    accounting: tuple[Accounting, ...]
    rehearsal: tuple[str, ...] = ()
    """What was replaced for a rehearsal; empty: a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A paired endpoint that a suite yields; more is better, except for a distance and where `less` says so."""

    name: str
    kind: Literal["binary", "continuous", "distance", "ratio"]
    """`ratio`: positive numbers of a block of load, compared round by round as ratios."""
    units: str
    scale: float = 1.0
    """Multiplies a value for people: 100 shows a share in points."""
    chance: float | None = None
    """Mean score of guessing, for the floor; None: no such level."""
    of: str = ""
    """The score that it is taken from, where that has another name."""
    over: Literal["mean", "any", "all"] = "mean"
    """How a sample's epochs become one number: their mean; or the chance that any, or all, of `k` drawn from them is right."""
    k: int = 1
    """Epochs that `any` and `all` draw; a suite with fewer is refused."""
    less: bool = False
    """Less is better: a latency, a cost."""

    @property
    def score(self) -> str:
        """The name under which attempts hold it."""
        return self.of or self.name
