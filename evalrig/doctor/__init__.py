"""What is here, and what each lack means: `evalrig doctor`. A probe looks at one thing and gives one sign."""

import os
from collections.abc import Sequence

from evalrig.doctor import machine
from evalrig.doctor.sign import Mark, Sign

__all__ = ["Mark", "Sign", "examine", "needed", "shown"]


def examine(interpreter: str) -> list[Sign]:
    """Every sign, in a fixed order. `interpreter`: the Python of the environment that has SGLang or vLLM."""
    first = [machine.python(), machine.installation()]
    if needed(first):
        return first
    from evalrig.doctor import engines, extras  # they import packages that may be what is missing

    return [
        *first,
        machine.processor(),
        machine.memory(),
        *machine.disk(),
        extras.content(),
        machine.fonts(),
        machine.proxies(os.environ),
        engines.refengine(),
        engines.llama_cpp(),
        engines.launched("sglang", interpreter),
        engines.launched("vllm", interpreter),
        engines.elsewhere(),
        engines.gpus(),
        extras.sandbox(),
        *extras.packages(),
    ]


def needed(signs: Sequence[Sign]) -> list[Sign]:
    """Lacks without which nothing can be run."""
    return [sign for sign in signs if sign.mark is Mark.LACK and sign.needed]


def shown(signs: Sequence[Sign]) -> str:
    """A line a sign, and a count."""
    marks = [sign.mark for sign in signs]
    tally = ", ".join(f"{marks.count(mark)} {mark}" for mark in Mark)
    return "".join(f"{sign}\n" for sign in signs) + f"\n{tally}\n"
