"""Is this really the variant we think, seen through the same tokens? Proved per variant before its first attempt."""

import hashlib
from collections.abc import Awaitable, Mapping
from typing import Final

import numpy as np

from evalrig.analysis.kl import row_faults
from evalrig.engine import Capabilities, Engine, Sampling, Scoring
from evalrig.errors import EngineError, RunError, UsageError
from evalrig.ladder import climb
from evalrig.progress import Progress
from evalrig.proof import Preflight, Probes
from evalrig.records import RunFolder
from evalrig.types import AGAIN, REFERENCE, Level, Message
from evalrig.validity import compare, expected

PROBES: Final[dict[str, str]] = {
    "prose": "The lighthouse keeper wrote the weather down every evening, and on the fourth night the ink froze.",
    "code": "def area(r):\n    if r < 0:\n        raise ValueError('negative')\n    return 3.14159 * r ** 2\n",
    "digits": "Order 7730021489 shipped 2026-03-14; total 1,204.50; reference A9F3-00B7-41C2.",
    "json": '{"name": "move", "arguments": {"from": "a/b.txt", "to": ["c", "d"], "force": false}}',
    "scripts": "Straße, naïve, 東京, Привет, 🙂, tab\there,  two spaces",
}
"""Texts of several kinds: a tokenizer or template that differs shows in at least one."""

CONVERSATIONS: Final[dict[str, tuple[Message, ...]]] = {
    "chat": (Message(role="user", content="Name three rivers and the sea each flows into."),),
    "chat-system": (
        Message(role="system", content="Answer in one word."),
        Message(role="user", content="Which planet is the largest?"),
        Message(role="assistant", content="Jupiter."),
        Message(role="user", content="And the smallest?"),
    ),
}

PROBE_TOP_K = 20
PROBE_TOKENS = 8
"""Decoded after a probe, greedily."""
COOL = 0.5
"""Temperature at which logprobs scaled by it are told from raw ones."""
APART = 0.1
"""Nats by which the two must differ, mean over tokens, before one is called the other."""
LEG_PROBES = {"prose", "chat"}
"""Probes that also go through the cache and through the decode path."""
ENGINE_KEYS = (
    "engine",
    "version",
    "weights",
    "kv_cache",
    "weights_digest",
    "tokenizer_digest",
    "template_digest",
    "flags",
)


async def prove(engine: Engine) -> Preflight:
    """Ask the engine what it is, tokenise and score the probes, and climb the ladder of its chat route.

    Faults (non-finite or unnormalised logprobs) are findings, not errors; a call that fails is an `EngineError`.
    """
    able = engine.able(engine.options)
    probes, faults = await _probed(engine) if able.prompt_logprobs or able.decode_logprobs else (Probes(), [])
    ladder = await climb(engine) if able.chat else ()
    return Preflight(
        variant=engine.variant.name,
        expect=engine.variant.expect,
        fingerprint=await engine.fingerprint(),
        capacity=await engine.capacity(),
        probes=probes,
        faults=tuple(faults),
        inventory=await engine.inventory(),
        ladder=ladder,
    )


async def _probed(engine: Engine) -> tuple[Probes, list[str]]:
    """The probes, and what is wrong with their numbers."""
    prompts = {name: await engine.tokenize(text) for name, text in PROBES.items()}
    refused: dict[str, str] = {}
    for name, messages in CONVERSATIONS.items():
        try:
            prompts[name] = await engine.tokenize(messages)
        except EngineError:
            if not engine.alive():
                raise
            refused[name] = "refused"  # some templates take no system message: then both arms' must not
    scored = await _probe(engine, prompts)
    faults = [f"probe `{name}` became {len(ids)} tokens" for name, ids in prompts.items() if len(ids) < 2]
    faults += [fault for leg, one in scored.items() if one is not None for fault in _faults(leg, one, full=False)]
    if engine.able(engine.options).top_logprobs == -1 and len(ids := prompts["digits"]) >= 2:
        faults += _faults("whole vocabulary", await engine.score(ids, len(ids) - 1, -1), full=True)
    nats = [-float(one.logprobs.mean(dtype=np.float64)) for name in prompts if (one := scored.get(name))]
    tokens = {name: hashlib.sha256(repr(ids).encode()).hexdigest()[:16] for name, ids in prompts.items()}
    digests = {leg: "refused" if one is None else _digest(one) for leg, one in scored.items()}
    mean = float(np.mean(nats)) if nats and np.isfinite(nats).all() else None
    mode = await _mode(engine, prompts["prose"]) if scored.get("prose") is not None else ""
    return Probes(prompt_digests=refused | tokens, logprob_digests=digests, nats=mean, mode=mode), faults


async def _mode(engine: Engine, ids: tuple[int, ...]) -> str:
    """Are the logprobs of generated tokens those of the model, or of the law that was sampled from?

    Told from the same tokens scored as given ones, which no temperature touches.
    """
    able, sampling = engine.able(engine.options), Sampling(max_tokens=PROBE_TOKENS, temperature=COOL, seed=0)
    try:
        answer = await engine.generate(ids, sampling)
        if not answer.logprobs:
            return ""
        given = await engine.score([*ids, *answer.token_ids], len(ids), _reach(able.top_logprobs))
    except EngineError:
        if not engine.alive():
            raise
        return ""  # what is asked for in earnest will say why it is refused
    listed = given.top_logprobs.astype(np.float64) / COOL
    if not listed.shape[1] or not np.isfinite(given.logprobs).all():
        return ""
    scaled = given.logprobs / COOL - np.logaddexp.reduce(listed, axis=1)
    said = np.asarray(answer.logprobs)
    from_raw, from_scaled = (float(np.abs(said - law).mean()) for law in (given.logprobs, scaled))
    if abs(from_raw - from_scaled) < APART:
        return ""
    return "raw" if from_raw < from_scaled else "scaled"


async def _probe(engine: Engine, prompts: Mapping[str, tuple[int, ...]]) -> dict[str, Scoring | None]:
    """The probes through every way to score that the engine has: a KV format may show in one of them alone. None: refused."""
    able = engine.able(engine.options)
    long = {name: ids for name, ids in prompts.items() if len(ids) >= 2}
    k, deepest = _reach(able.top_logprobs), _reach(able.decode_logprobs)
    found: dict[str, Scoring | None] = {}
    for name, ids in long.items() if able.prompt_logprobs else ():
        found[name] = await engine.score(ids, 1, k)
    for name in sorted(LEG_PROBES & long.keys()):
        ids = long[name]
        if able.cached_prefix:
            call = engine.score_cached(ids, len(ids) // 2, k)
            found[f"{name}, cached prefix"] = await _unless_refused(engine, able, call)
        if able.decode_logprobs:
            found[f"{name}, decode"] = await _unless_refused(engine, able, _decoded(engine, ids, deepest))
    return found


async def _decoded(engine: Engine, ids: tuple[int, ...], k: int) -> Scoring:
    return (await engine.decode(ids, Sampling(max_tokens=PROBE_TOKENS, seed=0), k))[1]


async def _unless_refused(engine: Engine, able: Capabilities, call: Awaitable[Scoring]) -> Scoring | None:
    """A suite that needs this way to score will say so; where it is the only way, nothing can be proved without it."""
    try:
        return await call
    except EngineError:
        if not engine.alive() or not able.prompt_logprobs:
            raise
        return None


def _reach(deepest: int) -> int:
    return PROBE_TOP_K if deepest < 0 else min(PROBE_TOP_K, deepest)


def _digest(scoring: Scoring) -> str:
    return hashlib.sha256(scoring.logprobs.tobytes() + scoring.top_logprobs.tobytes()).hexdigest()[:16]


def _faults(name: str, scoring: Scoring, full: bool) -> list[str]:
    found = row_faults(scoring.top_logprobs, full)
    faults = [] if np.isfinite(scoring.logprobs).all() else [f"probe `{name}`: non-finite logprobs of given tokens"]
    if found.non_finite:
        faults.append(f"probe `{name}`: {found.non_finite} rows with non-finite logprobs")
    if found.over_unity:
        faults.append(f"probe `{name}`: {found.over_unity} rows whose probabilities do not sum to one")
    return faults


class Gatekeeper:
    """Admits an engine to the suites: proves it, keeps what was proved, and compares it with what is known."""

    def __init__(self, folder: RunFolder, progress: Progress) -> None:
        self._folder = folder
        self._progress = progress
        self._own: set[str] = set()
        """Variants whose preflight this run wrote itself."""

    async def admit(self, engine: Engine) -> bool:
        """True: its attempts may be made. False: the reason is on file and makes the candidate INVALID.

        Raises:
            UsageError: a second process of this variant (a resumed run) is not what the first one was.
        """
        name = engine.variant.name
        found = await prove(engine)
        self._folder.set_failed(name, "")
        before = self._folder.preflight(name)
        if before is None:
            self._folder.write_preflight(found)
            self._own.add(name)
        elif changed := [
            key for key in ENGINE_KEYS if getattr(before.fingerprint, key) != getattr(found.fingerprint, key)
        ]:
            keys = ", ".join(f"`{key}`" for key in changed)
            words = f"{name}: cannot go on: the engine's {keys} changed since the start"
            raise (
                RunError(f"{words} of this very run") if name in self._own else UsageError(f"{words}; start a new run")
            )
        reference = self._folder.preflight(REFERENCE)
        findings = expected(found, bool(self._folder.plan().chats))
        if reference and name not in (REFERENCE, AGAIN):
            findings += compare(reference, found)
        faults = [finding.text for finding in findings if finding.level is Level.INVALID]
        if before is not None and faults:
            self._folder.set_failed(name, "; ".join(faults))  # what is on file is what the first process was
        for fault in faults:
            self._progress.say(f"INVALID: {fault}")
        if not faults:
            self._progress.say(f"{name}: preflight passed ({len(findings)} rules)")
        return not faults
