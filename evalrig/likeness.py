"""Do two arms differ in what they claim to, and in nothing else? From what was read back of both; silent where nothing was told."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from evalrig.proof import Preflight, RungOutcome
from evalrig.types import FAULTS, REFERENCE, Finding, Level, Variant

BITS: Final[Mapping[str, float]] = {
    **{"f32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "fp8_e4m3": 8, "fp8_e5m2": 8, "int8": 8, "mxfp8": 8.25},
    **{"int4": 4, "w4afp8": 4, "nvfp4": 4.5, "mxfp4": 4.25, "fp4_mx_block16": 4.5},
}
"""Bits an element takes, its share of block scales included."""
TOLERANCE: Final = 0.03
"""Of a capacity ratio: pools are told to three digits of a gigabyte."""
GARBAGE_NATS: Final = 3.0
"""Mean surprise per token above the reference's, on plain probes, at which an engine speaks garbage."""
LAYOUT: Final = (
    "tp_size",
    "dp_size",
    "pp_size",
    "tensor_parallel_size",
    "data_parallel_size",
    "pipeline_parallel_size",
)
"""Flags on which a rank's share of the KV cache depends."""
GROUPS: Final = ("numerics", "parallel", "memory")
"""Groups of options that move the digits, and are not what is compared."""
OWN: Final = ("quantization", "dtype", "kv_cache_dtype")
"""Flags that are the very difference between the arms, and judged as dtypes."""


def asked(reference: Variant, candidate: Variant) -> list[Finding]:
    """Options of the run file that move the digits and differ, one finding each: known before anything starts."""
    found: list[Finding] = []
    for group in GROUPS:
        ours, theirs = reference.options.get(group), candidate.options.get(group)
        if not isinstance(ours, Mapping) or not isinstance(theirs, Mapping):
            continue
        for key in sorted({*ours, *theirs}):
            mine, other = theirs.get(key), ours.get(key)
            if mine != other:
                text = f"{group}.{key} is {_word(mine)}, the reference's {_word(other)}: it moves the digits too"
                found.append(
                    Finding(
                        rule="options", level=Level.WARN, text=f"{candidate.name}: {text}", candidate=candidate.name
                    )
                )
    return found


def _word(value: Any) -> str:
    return "not set" if value in (None, "") else str(value)


def alone(found: Preflight) -> Iterator[Finding]:
    """What one arm says of itself: faults switched on, scales of its KV cache, mode of its logprobs."""
    if faults := found.fingerprint.flags.get(FAULTS):
        scope = "" if found.variant.startswith(REFERENCE) else found.variant
        text = f"{found.variant}: its engine is wrong on purpose ({faults}): this proves rules, not a variant"
        yield Finding(rule="fault", level=Level.INVALID, text=text, candidate=scope)
    yield from _mode(found)
    yield from _scales(found)


def _mode(found: Preflight) -> Iterator[Finding]:
    """Scaled logprobs are of another law than the model's wherever the temperature is not 1."""
    scope = "" if found.variant.startswith(REFERENCE) else found.variant
    if found.probes.mode == "raw":
        text = f"{found.variant}: logprobs of generated tokens are raw: no temperature scales them"
        yield Finding(rule="logprobs mode", level=Level.OK, text=text, candidate=scope)
    elif found.probes.mode == "scaled":
        text = f"{found.variant}: logprobs of generated tokens are scaled by the temperature; only those at temperature 1 are the model's"
        yield Finding(rule="logprobs mode", level=Level.WARN, text=text, candidate=scope)


def _scales(found: Preflight) -> Iterator[Finding]:
    """Scales of an FP8 KV cache."""
    if not found.fingerprint.kv_cache.startswith("fp8") or not found.inventory.kv_scales:
        return
    scope = "" if found.variant.startswith(REFERENCE) else found.variant
    said = "; ".join(f"`{line}`" for line in found.inventory.warnings)
    if found.inventory.kv_scales == "none":
        text = f"{found.variant}: FP8 KV cache without scales, so all are 1.0" + (
            f"; the engine says {said}" if said else ""
        )
        yield Finding(rule="KV scales", level=Level.WARN, text=text, candidate=scope)
    else:
        text = f"{found.variant}: scales of the FP8 KV cache come from the {found.inventory.kv_scales}"
        yield Finding(rule="KV scales", level=Level.OK, text=text, candidate=scope)


UNSOUND: Final = (RungOutcome.DIFFERS, RungOutcome.IGNORED, RungOutcome.MIXED)
"""A rung so taken is worth a word about that engine alone; the others depend on model and kind of engine."""


def climbed(found: Preflight, chats: bool) -> Iterator[Finding]:
    """What one arm's chat route does. `chats`: some suite asks through it."""
    scope = "" if found.variant.startswith(REFERENCE) else found.variant
    refused = next((rung for rung in found.ladder if rung.name == "chat" and rung.outcome is RungOutcome.REFUSED), None)
    if refused:
        level = Level.INVALID if chats else Level.WARN
        text = f"{found.variant}: the plainest chat was refused: {refused.detail}"
        yield Finding(rule="chat", level=level, text=text, candidate=scope)
        return
    unsound = [rung for rung in found.ladder if rung.outcome in UNSOUND]
    for rung in unsound:
        text = f"{found.variant}: {rung.name}: {rung.outcome.value}, {rung.detail}"
        yield Finding(rule="ladder", level=Level.WARN, text=text, candidate=scope)
    if found.ladder and not unsound:
        text = f"{found.variant}: its chat route did what {len(found.ladder)} rungs asked, or said that it cannot"
        yield Finding(rule="ladder", level=Level.OK, text=text, candidate=scope)


def beside(reference: Preflight, candidate: Preflight) -> Iterator[Finding]:
    """A candidate's inventory beside the reference's."""
    for rule in (_capacity, _size, _numerics, _sampling, _garbage, _ladder):
        yield from rule(reference, candidate)


def _finding(rule: str, level: Level, candidate: Preflight, text: str) -> Finding:
    return Finding(rule=rule, level=level, text=f"{candidate.variant}: {text}", candidate=candidate.variant)


def _capacity(reference: Preflight, candidate: Preflight) -> Iterator[Finding]:
    """Tokens in the same bytes of KV pool."""
    arms = (reference, candidate)
    bits = [BITS.get(arm.fingerprint.kv_cache, 0) for arm in arms]
    held = [arm.capacity.kv_bytes_per_token for arm in arms]
    if not all(bits) or not all(held) or not all(arm.inventory.numerics for arm in arms):
        return
    if unlike := [key for key in LAYOUT if len({arm.inventory.numerics.get(key) for arm in arms}) > 1]:
        text = f"tokens per byte of KV cache cannot be compared: {', '.join(unlike)} differ"
        yield _finding("KV capacity", Level.WARN, candidate, text)
        return
    ratio, wanted = held[0] / held[1], bits[0] / bits[1]
    kinds = f"{candidate.fingerprint.kv_cache} against {reference.fingerprint.kv_cache}"
    text = f"{ratio:.2f} times the reference's tokens in equal bytes of KV cache; {wanted:.2f} expected of {kinds}"
    if abs(ratio / wanted - 1) <= TOLERANCE:
        yield _finding("KV capacity", Level.OK, candidate, text)
    else:
        why = "say in `scope.note` why (layers left out, scales, an index cache), or the format is not what it claims to be"
        yield _finding("KV capacity", Level.WARN, candidate, f"{text}; {why}")


def _size(reference: Preflight, candidate: Preflight) -> Iterator[Finding]:
    """A checkpoint in fewer bits is smaller."""
    sizes = [arm.inventory.checkpoint_bytes for arm in (reference, candidate)]
    bits = [BITS.get(arm.fingerprint.weights, 0) for arm in (reference, candidate)]
    if not all(sizes) or not all(bits) or bits[1] >= bits[0]:
        return
    ratio = sizes[1] / sizes[0]
    kinds = f"{candidate.fingerprint.weights} against {reference.fingerprint.weights}"
    text = f"the checkpoint is {ratio:.2f} times the reference's size, {kinds}"
    if ratio < 1:
        yield _finding("checkpoint size", Level.OK, candidate, text)
    elif candidate.fingerprint.weights_digest == reference.fingerprint.weights_digest:
        text = f"quantised while loading, {kinds}: its checkpoint is the reference's"
        yield _finding("checkpoint size", Level.OK, candidate, text)
    else:
        yield _finding(
            "checkpoint size", Level.WARN, candidate, f"{text}: fewer bits should be smaller; see its format"
        )


def _numerics(reference: Preflight, candidate: Preflight) -> Iterator[Finding]:
    """Flags that move the digits, and are not the difference that is measured."""
    ours, theirs = reference.inventory.numerics, candidate.inventory.numerics
    if not ours or not theirs:
        return
    names = [key for key in sorted({*ours, *theirs}) if key not in OWN]
    unlike = [key for key in names if ours.get(key) != theirs.get(key)]
    for key in unlike:
        text = f"{key} is {theirs.get(key, 'not set')}, the reference's {ours.get(key, 'not set')}: it moves the digits too"
        yield _finding("flags", Level.WARN, candidate, text)
    if not unlike:
        text = f"the reference's values of all {len(names)} flags that move the digits"
        yield _finding("flags", Level.OK, candidate, text)


def _sampling(reference: Preflight, candidate: Preflight) -> Iterator[Finding]:
    """generation_config.json: requests are explicit, but users' requests may not be."""
    if not reference.inventory.checkpoint_bytes or not candidate.inventory.checkpoint_bytes:
        return
    if reference.inventory.sampling_defaults == candidate.inventory.sampling_defaults:
        yield _finding("sampling defaults", Level.OK, candidate, "the reference's generation_config.json")
    else:
        text = (
            "another generation_config.json than the reference's; requests here are explicit, those of users may not be"
        )
        yield _finding("sampling defaults", Level.WARN, candidate, text)


def _garbage(reference: Preflight, candidate: Preflight) -> Iterator[Finding]:
    """An engine can start healthy in a format that it cannot compute (vLLM with NVFP4 on a CPU)."""
    if reference.probes.nats is None or candidate.probes.nats is None:
        return
    more = candidate.probes.nats - reference.probes.nats
    if more > GARBAGE_NATS:
        text = f"plain text is {more:.1f} nats per token less likely than to the reference: it may speak garbage; "
        yield _finding("probes", Level.WARN, candidate, text + "see whether this hardware can compute the format")


def _ladder(reference: Preflight, candidate: Preflight) -> Iterator[Finding]:
    """The chat routes side by side. Token counts are compared within one kind of engine: SGLang adds a field to every tool."""
    ours, theirs = ({rung.name: rung for rung in arm.ladder} for arm in (reference, candidate))
    same = reference.fingerprint.engine == candidate.fingerprint.engine
    both = [name for name in ours if name in theirs] if same else []
    counts = {name: (theirs[name].prompt_tokens, ours[name].prompt_tokens) for name in both}
    if unlike := [name for name, pair in counts.items() if all(pair) and pair[0] != pair[1]]:
        first = f"`{unlike[0]}`: {counts[unlike[0]][0]}, the reference's {counts[unlike[0]][1]}"
        text = f"other numbers of prompt tokens in {len(unlike)} chats ({first}); tokenizer or template differ"
        yield _finding("prompt tokens", Level.INVALID, candidate, text)
    for name in sorted({*ours, *theirs} if ours and theirs else ()):
        words = [rungs[name].outcome.value if name in rungs else "not tried" for rungs in (theirs, ours)]
        if words[0] != words[1]:
            yield _finding("ladder", Level.WARN, candidate, f"{name}: {words[0]}; of the reference: {words[1]}")
