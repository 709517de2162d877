"""Plain text for terminals: the table of verdicts with the reasons, and what a plan can decide."""

from evalrig.plan import Plan
from evalrig.records import RunFolder
from evalrig.types import Verdict


def ending(folder: RunFolder, verdict: Verdict, stopped: str) -> str:
    """What `evalrig run` prints last."""
    lines = [f"{name}: {one.outcome}: {'; '.join(one.reasons)}" for name, one in verdict.candidates.items()]
    if stopped:
        lines.append(f"{stopped}; go on with: evalrig resume {folder.path}")
    return "\n".join([*lines, f"verdict: {verdict.outcome} (exit code {verdict.exit_code})", ""])


def planned(plan: Plan, text: str) -> str:
    """What `evalrig show` prints."""
    return text
