"""The shape of the code: what can be held in the head at once."""

import ast
from pathlib import Path

import pytest

import evalrig

MODULES = sorted(Path(evalrig.__file__).parent.rglob("*.py"))
NAMES = {"utils", "helpers", "misc", "common", "manager"}


def of(path: Path) -> str:
    return str(path.relative_to(Path(evalrig.__file__).parent))


@pytest.mark.parametrize("path", MODULES, ids=of)
def test_a_module_fits_and_says_what_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400
    assert ast.get_docstring(ast.parse(text)), "no module docstring: say in one sentence what the noun is"


def test_no_module_is_named_for_nothing() -> None:
    everything = {part for path in MODULES for part in path.relative_to(MODULES[0].parent).with_suffix("").parts}
    assert not everything & NAMES
