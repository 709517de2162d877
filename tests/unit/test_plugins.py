"""From a kind to its class."""

from pathlib import Path

import pytest

from evalrig.engine import Engine
from evalrig.errors import UsageError
from evalrig.gate import Gate
from evalrig.plugins import find, kinds
from evalrig.suite import Suite


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of one's own, `<unique>`, on the path."""
    home = tmp_path / f"own_{tmp_path.name.replace('-', '_')}"
    home.mkdir()
    (home / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    return home


def refusal(shelf: str, kind: str, base: type = Engine) -> str:
    with pytest.raises(UsageError) as caught:
        find(shelf, kind, base, "here.kind")
    return str(caught.value)


def test_shelves_list_their_files() -> None:
    assert {"refengine", "replay"} <= set(kinds("engines"))
    assert {"kl", "piqa"} <= set(kinds("suites"))
    assert {"kl_veto", "noninferior"} <= set(kinds("gates"))
    assert "local" in kinds("runners")


def test_a_kind_is_the_class_in_its_file() -> None:
    assert find("suites", "piqa", Suite, "x").__module__ == "evalrig.suites.piqa"
    assert find("engines", "toys.engine", Engine, "x").__name__ == "Toy"


def test_an_unknown_kind_names_the_closest_or_all() -> None:
    assert refusal("engines", "replai") == "here.kind: no engine `replai`; did you mean `replay`?"
    known = ", ".join(kinds("engines"))
    assert refusal("engines", "zzzz") == f"here.kind: no engine `zzzz`; known: {known}"
    assert refusal("engines", "no.such.module") == f"here.kind: no engine `no.such.module`; known: {known}"


@pytest.mark.parametrize("kind", ["", ".", "..", ".replay", "a..b", "re play", "../replay"])
def test_a_kind_that_can_be_no_module_is_unknown(kind: str) -> None:
    assert refusal("engines", kind).startswith(f"here.kind: no engine `{kind}`; ")


def test_a_missing_third_party_package_is_named(package: Path) -> None:
    (package / "fast.py").write_text("import surely_not_installed\n")
    kind = f"{package.name}.fast"
    assert refusal("engines", kind) == f"here.kind: `{kind}` needs the package `surely_not_installed`; install it"


def test_two_classes_or_none_are_refused(package: Path) -> None:
    (package / "two.py").write_text("from evalrig.gate import Gate\nclass A(Gate): ...\nclass B(Gate): ...\n")
    (package / "none.py").write_text("from evalrig.gates.kl_veto import KlVeto\n")
    for name, count in (("two", 2), ("none", 0)):
        kind = f"{package.name}.{name}"
        line = f"here.kind: `{kind}` defines {count} Gate classes; it must define exactly one"
        assert refusal("gates", kind, Gate) == line


def test_a_bug_in_a_module_keeps_its_own_error(package: Path) -> None:
    (package / "broken.py").write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        find("engines", f"{package.name}.broken", Engine, "x")
