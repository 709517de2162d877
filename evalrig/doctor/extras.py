"""What only some runs need: data, the sandbox, further packages."""

from importlib.metadata import PackageNotFoundError, version

from evalrig.doctor.sign import Sign, lack, note, ok
from evalrig.fetch import Card, cards, missing
from evalrig.plugins import find, kinds, make
from evalrig.sandbox import Booth, Sandbox, SandboxUnavailable, probe

PROGRAMS = "suites that run programs written by a model are refused here"
DEFAULT = "bwrap"


def content() -> Sign:
    """Models and data of the shipped suites in the user's cache."""
    fetched = [card for card in cards().values() if card.package is not None]
    absent = missing([card.name for card in fetched])
    here = [f"{card.name} ({_bytes(card) / 1e6:.0f} MB)" for card in fetched if card.name not in absent]
    words = f"fetched: {', '.join(here) or 'nothing'}"
    if absent:
        return note(
            "data", f"{words}; not fetched: {', '.join(absent)}", "a run fetches what it needs, or: evalrig fetch"
        )
    return ok("data", words)


def _bytes(card: Card) -> int:
    return sum(file.size for file in card.files)


def sandbox() -> Sign:
    """The default one, tried on a program that must come back and must not get out."""
    try:
        one = make(find("sandboxes", DEFAULT, Sandbox, "sandbox"), False)
        return ok("sandbox", f"{Booth(one, 1, probe(one)).label}, works")
    except SandboxUnavailable as error:
        what, _, remedy = str(error).removeprefix("sandbox: ").rpartition("; ")
        return lack("sandbox", what, f"{PROGRAMS}: {remedy}")


def packages() -> list[Sign]:
    """Those that are imported when first needed."""
    return [
        _package("openai", "chat and tool calls need it: pip install openai", False),
        _package("ray", "only the runner ray needs it: pip install ray", "ray" not in kinds("runners")),
    ]


def _package(name: str, then: str, unused: bool) -> Sign:
    try:
        return ok(name, version(name))
    except PackageNotFoundError:
        return note(name, "not installed", "nothing needs it yet") if unused else note(name, "not installed", then)
