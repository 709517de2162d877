"""Scales of an FP8 cache: one given number, or one a layer, side and head, measured on a short text at start."""

import numpy as np

from evalrig.refengine.arrays import F32
from evalrig.refengine.cache import BLOCK, PAGE, PagedCache
from evalrig.refengine.formats import FP8_MAX, KV_FORMATS
from evalrig.refengine.model import Model
from evalrig.refengine.step import Slice, Stepper
from evalrig.refengine.tokenizer import Tokenizer

PER_HEAD = "per-head"
"""The value of `--kv-scale` that asks for measured scales."""
HEADROOM = 2
"""How much larger than on the calibration text a value may be before it is clipped. It costs no precision: e4m3 is a
float."""
CALIBRATION_TEXT = (
    "The committee met on 14 March 2019 and heard three witnesses, two of whom disagreed. "
    "def area(r): return 3.14159 * r ** 2 — «Où est la gare?», she asked; nobody answered. "
    "17 x 23 = 391, so the remainder is 8. Dear Ms Okafor, thank you for your order #4471. "
    '{"name": "lamp", "price": 12.5, "tags": ["red", "small"]} Once there was a fox who counted stars.'
)


def per_head_scales(model: Model, tokenizer: Tokenizer) -> F32:
    """Scales [layers, 2, kv_heads, 1] that put HEADROOM times the largest value of the calibration text at ±448."""
    tokens = tokenizer.encode(CALIBRATION_TEXT)
    context = -(-len(tokens) // BLOCK) * BLOCK
    cache = PagedCache(model.architecture, KV_FORMATS["f32"], pages=context // PAGE, rows=1, context=context)
    sequence = cache.open(len(tokens))
    Stepper(model, cache, context=context, exact=False).run([Slice(sequence=sequence, tokens=tokens)])
    largest: F32 = np.empty((model.architecture.layers, 2, model.architecture.kv_heads, 1), np.float32)
    for layer in range(model.architecture.layers):
        keys, values = cache.read(layer, sequence, len(tokens))
        largest[layer, 0, :, 0] = np.abs(keys).max(axis=(1, 2))
        largest[layer, 1, :, 0] = np.abs(values).max(axis=(1, 2))
    return np.maximum(largest * (HEADROOM / FP8_MAX), np.float32(1e-6))
