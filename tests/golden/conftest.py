"""`--update-golden` writes the expected files anew; reviewers read the diff."""

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
        assert content == path.read_bytes(), f"{path.name} differs; read the difference, then `make golden`"

    return compare
