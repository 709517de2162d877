"""What is proved about a variant before its first attempt, and what was read back of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from evalrig.types import Capacity, Fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What an engine loaded, and how. Empty: not told."""

    checkpoint_bytes: int = 0
    """Size of the tensors on the disk."""
    kv_scales: str = ""
    """Scales of an FP8 KV cache: `checkpoint`, `file`, `none`."""
    sampling_defaults: str = ""
    """Digest of the checkpoint's generation_config.json."""
    numerics: Mapping[str, str] = field(default_factory=dict[str, str])
    """Flags that move the digits, as the engine resolved them."""
    warnings: tuple[str, ...] = ()
    """Lines of the log that bear on the numbers, in the engine's own words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """The same short texts and conversations through every variant. Digests compare exactly; none: the engine cannot be asked."""

    prompt_digests: Mapping[str, str] = field(default_factory=dict[str, str])
    """Probe name -> digest of its token ids."""
    logprob_digests: Mapping[str, str] = field(default_factory=dict[str, str])
    """Probe name -> digest of its logprobs, bit for bit."""
    nats: float | None = None
    """Mean surprise per token: far above the reference's, and the engine speaks garbage."""
    mode: str = ""
    """Logprobs of generated tokens: `raw`, or `scaled` by the temperature; empty: not told apart."""


class RungOutcome(StrEnum):
    """How one rung of the ladder was taken."""

    PASSED = "pass"
    DIFFERS = "differs"
    """Not what the same question gave in another form."""
    IGNORED = "ignored"
    """Accepted and not acted on."""
    NO_CALL = "no call"
    """The model answered in words."""
    CUT = "cut"
    """The token limit came first: nothing is shown."""
    MIXED = "mixed in"
    """Reasoning stands in the content."""
    NONE = "nothing to see"
    REFUSED = "refused"
    """The call failed while the engine was alive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One thing that the chat route was asked to do."""

    name: str
    outcome: RungOutcome
    detail: str = ""
    prompt_tokens: int = 0
    """As the server counted them; 0: not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """What was proved about one variant before its first attempt."""

    variant: str
    expect: Mapping[str, str]
    fingerprint: Fingerprint
    capacity: Capacity
    probes: Probes = field(default_factory=Probes)
    faults: tuple[str, ...] = ()
    """Non-finite or unnormalised rows, a readiness or tokenising failure: each invalidates."""
    inventory: Inventory = field(default_factory=Inventory)
    ladder: tuple[Rung, ...] = ()
    """The chat route, rung by rung; empty: the engine has none."""
