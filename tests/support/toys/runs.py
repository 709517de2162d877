"""Run files for the toy engine, and runs made from them."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from evalrig.progress import Plain
from evalrig.run import Finished, run
from toys.engine import table, tokens

REFERENCE = table()


def likelihood(prompt: str, choice: str) -> float:
    """Summed logprob of a choice under the toy reference."""
    ids, start = tokens(f"{prompt} {choice}"), len(tokens(prompt))
    return float(sum(REFERENCE[ids[i - 1], ids[i]] for i in range(start, len(ids))))


def piqa_file(path: Path, rows: int = 120, right: float = 0.75) -> Path:
    """Questions of which the toy reference answers about the share `right`."""
    rng = np.random.default_rng(3)
    lines: list[str] = []
    for _ in range(rows):
        words = ["".join(rng.choice(list("abcdefghij"), 8)) for _ in range(3)]
        better = likelihood(f"Question: {words[0]}\nAnswer:", words[1]) > likelihood(
            f"Question: {words[0]}\nAnswer:", words[2]
        )
        target = ((better == (rng.random() < right)) and "A") or "B"
        text = {"A": words[1], "B": words[2]}[target]
        row = {"question": words[0], "options": f"A. {words[1]}\nB. {words[2]}", "answer": f"{target}. {text}"}
        lines.append(json.dumps(row))
    path.write_text("\n".join(lines) + "\n")
    return path


def prompts_file(path: Path, rows: int = 30) -> Path:
    """Prompts for the `kl` suite."""
    rng = np.random.default_rng(4)
    lines = [
        json.dumps(
            {
                "id": f"p-{n:02d}",
                "kind": "toy",
                "messages": [{"role": "user", "content": "".join(rng.choice(list("klmnop"), 12))}],
            }
        )
        for n in range(rows)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def run_file(folder: Path, candidates: Mapping[str, Mapping[str, Any]], **changes: Any) -> Path:
    """A run file in `folder`: both suites, small, with the toy engine; `changes` are laid over its top keys."""
    folder.mkdir(parents=True, exist_ok=True)
    tree: dict[str, Any] = {
        "defaults": ["schema", "_self_"],
        "name": "toy",
        "question": "May the toy be cheaper?",
        "output": str(folder / "runs"),
        "engine": {"kind": "toys.engine"},
        "reference": {"weights": "toy", "expect": {"weights": "bf16", "kv_cache": "bf16"}},
        "candidates": {
            name: {"expect": {"weights": "bf16", "kv_cache": "bf16"}, "args": dict(args)}
            for name, args in candidates.items()
        },
        "suites": {
            "kl": {
                "kind": "kl",
                "options": {"prompts": str(prompts_file(folder / "prompts.jsonl")), "tokens": 12, "top_k": 20},
            },
            "piqa": {"kind": "piqa", "options": {"path": str(piqa_file(folder / "piqa.jsonl"))}},
        },
        "gates": {
            "kl_veto": {"kind": "kl_veto", "suite": "kl", "metric": "kl", "margin": 0.05},
            "accuracy": {"kind": "noninferior", "suite": "piqa", "metric": "accuracy", "margin": 0.1},
            "lead": {"kind": "noninferior", "suite": "piqa", "metric": "lead", "margin": 0.5, "gating": False},
        },
        "runner": {"engines": 2, "concurrency": 4},
    }
    path = folder / "toy.yaml"
    path.write_text(yaml.safe_dump({**tree, **changes}, sort_keys=False))
    return path


class Silent(Plain):
    """A progress display that keeps what was said."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._rows = {}

    def say(self, line: str) -> None:
        self.lines.append(line)


def carry_out(path: Path, overrides: Sequence[str] = (), progress: Silent | None = None) -> Finished:
    """Run a run file in this process."""
    return asyncio.run(run(path, overrides, progress or Silent()))
