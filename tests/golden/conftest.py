"""`--update-golden` writes the expected files anew; reviewers read the diff."""

import difflib
from pathlib import Path

import pytest

EXPECTED = Path(__file__).parent / "expected"


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")


@pytest.fixture
def golden(request):
    """Compare bytes with a golden file, or write it."""

    def compare(name: str, content: bytes) -> None:
        path = EXPECTED / name
        if request.config.getoption("--update-golden", default=False):
            path.write_bytes(content)
        assert path.is_file(), f"{path.name} is not there; write it with `make golden` and read it"
        if content != (expected := path.read_bytes()):
            lines = difflib.unified_diff(
                expected.decode().splitlines(), content.decode().splitlines(), "golden", "now", n=1
            )
            difference = "\n".join(list(lines)[:40])
            pytest.fail(f"{path.name} differs; read the difference, then `make golden`:\n{difference}", pytrace=False)

    return compare
