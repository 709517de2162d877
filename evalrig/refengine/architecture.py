"""What fixes a decoder's computation: its family, its numbers, and the tensors it is made of."""

from collections.abc import Mapping
from dataclasses import dataclass

from evalrig.errors import UsageError

Shape = tuple[int, ...]
FIRST_BIAS = "blk.0.attn_q.bias"
HEAD = "output.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Decoders of one kind: Llama's, with what differs."""

    name: str
    """As `general.architecture` of GGUF and `model_type` of a config say it."""
    model_class: str
    """As `architectures` of a config says it."""
    bias: bool | None = False
    """Whether queries, keys and values have biases; None: where the checkpoint holds some."""
    head_norms: bool = False
    """Each query and key head is normalised before it is turned."""
    neighbours: bool = False
    """GGUF stores query and key rows so that neighbours turn together; else element i turns with i + head_dim / 2."""


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family(name="llama", model_class="LlamaForCausalLM", bias=None, neighbours=True),
        Family(name="qwen2", model_class="Qwen2ForCausalLM", bias=True),
        Family(name="qwen3", model_class="Qwen3ForCausalLM", head_norms=True),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary embedding of a whole head."""

    base: float
    divisors: tuple[float, ...] = ()
    """What each of the head_dim / 2 frequencies is divided by; empty: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The numbers that fix the computation."""

    family: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    """Longest sequence the model was trained for, in tokens."""
    rope: Rope
    norm_epsilon: float

    @property
    def kv_values(self) -> int:
        """Values that one token leaves in the cache: keys and values of every layer."""
        return 2 * self.layers * self.kv_heads * self.head_dim


def family_of(name: str, where: object) -> Family:
    """The family called `name`. UsageError, led by `where`, for one that this engine does not compute."""
    if name not in FAMILIES:
        raise UsageError(f"{where}: architecture {name!r} is not supported; refengine runs {', '.join(FAMILIES)}")
    return FAMILIES[name]


def check_numbers(architecture: Architecture, where: object) -> None:
    """UsageError, led by `where`, for numbers that no decoder can have, or none that this engine computes."""
    a = architecture
    if min(a.layers, a.width, a.heads, a.kv_heads, a.head_dim, a.vocabulary, a.context) < 1:
        raise UsageError(f"{where}: a size of the model is below 1: {a}; fetch it again")
    if a.heads % a.kv_heads:
        raise UsageError(f"{where}: {a.heads} query heads do not share {a.kv_heads} key heads evenly; not supported")
    if a.head_dim % 2:
        raise UsageError(f"{where}: heads of {a.head_dim} values, an odd number, cannot be turned; not supported")
    if a.rope.divisors and len(a.rope.divisors) != a.head_dim // 2:
        raise UsageError(
            f"{where}: {len(a.rope.divisors)} rotary factors for {a.head_dim // 2} frequencies; convert it again"
        )


def parts(architecture: Architecture, stored: Mapping[str, Shape]) -> dict[str, Shape]:
    """Every tensor the model is computed from, in GGUF's names, with its shape ([out, in] for a matrix).

    `stored` decides what may or may not be there: a head of its own, Llama's biases, the width of the middle layer.
    """
    a, family = architecture, FAMILIES[architecture.family]
    queries, keys = a.heads * a.head_dim, a.kv_heads * a.head_dim
    middle = (stored.get("blk.0.ffn_gate.weight") or (1,))[0]
    bias = FIRST_BIAS in stored if family.bias is None else family.bias
    layer: dict[str, Shape] = {
        "attn_norm.weight": (a.width,),
        "attn_q.weight": (queries, a.width),
        "attn_k.weight": (keys, a.width),
        "attn_v.weight": (keys, a.width),
        "attn_output.weight": (a.width, queries),
        "ffn_norm.weight": (a.width,),
        "ffn_gate.weight": (middle, a.width),
        "ffn_up.weight": (middle, a.width),
        "ffn_down.weight": (a.width, middle),
    }
    if bias:
        layer |= {"attn_q.bias": (queries,), "attn_k.bias": (keys,), "attn_v.bias": (keys,)}
    if family.head_norms:
        layer |= {"attn_q_norm.weight": (a.head_dim,), "attn_k_norm.weight": (a.head_dim,)}
    found: dict[str, Shape] = {"token_embd.weight": (a.vocabulary, a.width), "output_norm.weight": (a.width,)}
    if HEAD in stored:
        found[HEAD] = (a.vocabulary, a.width)
    return found | {f"blk.{i}.{name}": shape for i in range(a.layers) for name, shape in layer.items()}
