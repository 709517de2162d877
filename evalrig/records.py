"""The run folder: append, read, resume. The only module that knows its file format.

run.yaml  plan.json  environment.json  samples/<suite>.jsonl  traces/<suite>.jsonl
variants/<variant>/  preflight.json  engine.log  events.jsonl  records/<suite>.jsonl  tokens/<suite>/<kind>.arrows
                     load/<suite>/<round>.*  withdrawn/<suite>.jsonl
verdict.json  report.html  junit.xml  summary.md
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from io import BufferedWriter
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from evalrig.errors import RunError, UsageError
from evalrig.plan import Plan
from evalrig.proof import Preflight
from evalrig.tokens import SUFFIX, Columns, TokenFile, TokenWriter, key_of
from evalrig.types import Event, Record, Sample, State, Trace

T = TypeVar("T")
SCHEMA = 2
"""Of the files in a run folder. History: 1, the first; 2, a plan may be that of a rehearsal."""
READABLE = (1, 2)
ROWS = "rows"
"""Kind of tokens: the top-K lists of every scored token."""
AUDIT = "audit"
"""Kind of tokens: whole vocabularies of some."""


class RunFolder:
    """One run on disk. Reading needs no lock; `lock` before the first append."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: dict[Path, BufferedWriter] = {}
        self._tokens: dict[Path, TokenWriter] = {}
        self._lock: BufferedWriter | None = None

    # ---- making and opening

    @classmethod
    def create(
        cls,
        output: Path,
        plan: Plan,
        text: str,
        environment: Mapping[str, Any],
        samples: Mapping[str, Sequence[Sample]],
    ) -> "RunFolder":
        """A new folder `<output>/<name>/<time>` that appears whole or not at all."""
        parent = output / plan.header.run
        try:
            parent.mkdir(parents=True, exist_ok=True)
            path = _unused(parent / datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ"))
            draft = parent / f".{path.name}.{os.getpid()}"
            (draft / "samples").mkdir(parents=True)
        except OSError as error:
            raise UsageError(
                f"{output}: cannot make a run folder: {error.strerror}; set `output=` to a writable folder"
            ) from error
        try:
            cls(draft)._fill(plan, text, environment, samples)
            return cls(_settle(draft, path))
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise

    def _fill(
        self, plan: Plan, text: str, environment: Mapping[str, Any], samples: Mapping[str, Sequence[Sample]]
    ) -> None:
        self.write("run.yaml", text.encode())
        self.write("plan.json", _encode({"schema": SCHEMA, "plan": plan}))
        self.write("environment.json", _encode({"schema": SCHEMA, "plan_sha256": self.plan_sha256(), **environment}))
        for name, rows in samples.items():
            self.write(f"samples/{name}.jsonl", b"".join(msgspec.json.encode(row) + b"\n" for row in rows))

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run.

        Raises:
            UsageError: not a run folder, or of another schema.
        """
        if not (path / "plan.json").is_file():
            raise UsageError(f"{path}: not a run folder (no plan.json); give the folder that `evalrig run` printed")
        folder = cls(path)
        if (schema := folder._json("plan.json", dict[str, Any], lambda parts: parts["schema"])) not in READABLE:
            raise UsageError(
                f"{path}: a run of schema {schema!r}, this evalrig reads {' and '.join(map(str, READABLE))}; use the one that wrote it"
            )
        return folder

    def lock(self) -> None:
        """Refuse a second writer. The lock ends with the process, however it ends."""
        try:
            self._lock = (self.path / ".lock").open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise UsageError(f"{self.path}: another evalrig is writing this run; wait for it or stop it") from error
        except OSError as error:
            raise UsageError(f"{self.path}: cannot write: {error.strerror}; make the folder writable") from error

    def close(self) -> None:
        """Close all files and give the lock up."""
        for file in (*self._files.values(), *self._tokens.values()):
            file.close()
        self._files.clear()
        self._tokens.clear()
        if self._lock:
            self._lock.close()
            self._lock = None

    # ---- what was decided

    def plan(self) -> Plan:
        """The plan as registered."""
        return self._json(
            "plan.json", dict[str, msgspec.Raw], lambda parts: msgspec.json.decode(parts["plan"], type=Plan)
        )

    def environment(self) -> dict[str, Any]:
        """Versions and machine, as noted at the start."""
        return self._json("environment.json", dict[str, Any], lambda tree: tree)

    def plan_sha256(self) -> str:
        """Digest of plan.json as it lies there now."""
        return hashlib.sha256((self.path / "plan.json").read_bytes()).hexdigest()

    def stopped(self) -> str:
        """Why the run ended before it was complete; empty: it was not stopped."""
        path = self.path / "stopped.json"
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])["reason"] if path.is_file() else ""

    def set_stopped(self, reason: str) -> None:
        """Note why the run ends early; empty: it goes on."""
        if reason:
            self.write("stopped.json", _encode({"reason": reason}))
        else:
            (self.path / "stopped.json").unlink(missing_ok=True)

    def failed(self, variant: str) -> str:
        """Why a variant's engine was lost; empty: it was not."""
        path = self.variant_path(variant) / "failed.json"
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])["reason"] if path.is_file() else ""

    def set_failed(self, variant: str, reason: str) -> None:
        """Note that a variant's engine was lost; empty: it runs again."""
        if reason:
            self.write(f"variants/{variant}/failed.json", _encode({"reason": reason}))
        else:
            (self.variant_path(variant) / "failed.json").unlink(missing_ok=True)

    def run_text(self) -> str:
        """The resolved run file."""
        path = self.path / "run.yaml"
        try:
            return path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: cannot read: {error}; is this a whole run folder?") from error

    def samples(self, suite: str) -> list[Sample]:
        """The samples of a suite, in the order of the run."""
        path = self.path / "samples" / f"{suite}.jsonl"
        if not path.is_file():
            raise UsageError(f"{path}: not there; is this a whole run folder?")
        return self._lines(path, Sample)[0]

    # ---- what happened

    def append(self, *rows: Record) -> None:
        """Durable when this returns; each file is waited for once."""
        by_path: dict[Path, list[Record]] = {}
        for row in rows:
            by_path.setdefault(self.records_path(row.variant, row.suite), []).append(row)
        for path, own in by_path.items():
            self._append(path, own)

    def withdraw(self, variant: str, suite: str, samples: Collection[str]) -> None:
        """Move records to `withdrawn`, where nobody judges them: they are made again. A kill leaves each where it was, or in both."""
        path, rows = self.records_path(variant, suite), self.records(variant, suite)
        self._append(path.parents[1] / "withdrawn" / path.name, [row for row in rows if row.sample in samples])
        if file := self._files.pop(path, None):
            file.close()
        kept = (msgspec.json.encode(row) + b"\n" for row in rows if row.sample not in samples)
        self.write(str(path.relative_to(self.path)), b"".join(kept))

    def append_tokens(self, record: Record, kind: str, columns: Columns, sync: bool = True) -> None:
        """Durable when this returns, or after `sync_tokens` without `sync`; and only then may the record be appended.

        Raises:
            RunError: it cannot be written, or what is there is damaged: what a kill left belongs to no record, so a
                file that ends before what is recorded must not be cut off.
        """
        path = self.tokens_path(record.variant, record.suite, kind)
        if path not in self._tokens:
            file = self.tokens(record.variant, record.suite, kind)
            scored = [r for r in self.records(record.variant, record.suite) if r.state is State.SCORED]
            if kind == ROWS and file.torn and any(key_of(earlier) not in file.places for earlier in scored):
                raise RunError(f"{path}: damaged: it ends before what is recorded; restore it from a copy")
            self._tokens[path] = TokenWriter(path)
        self._tokens[path].append(key_of(record), columns, sync)

    def sync_tokens(self) -> None:
        """All token logprobs appended so far are durable when this returns; each file is waited for once."""
        for file in self._tokens.values():
            file.sync()

    def append_trace(self, suite: str, *traces: Trace) -> None:
        """Durable when this returns."""
        self._append(self.path / "traces" / f"{suite}.jsonl", traces)

    def append_event(self, variant: str, event: Event) -> None:
        """Durable when this returns."""
        self._append(self._events_path(variant), [event])

    def events(self, variant: str) -> list[Event]:
        """What befell a variant's engines, in order; of a run before there were events: nothing."""
        return self._lines(self._events_path(variant), Event)[0]

    def records(self, variant: str, suite: str) -> list[Record]:
        """All whole records, in the order they ended. A torn last line is left out."""
        return self._lines(self.records_path(variant, suite), Record)[0]

    def traces(self, suite: str) -> list[Trace]:
        """All whole traces."""
        return self._lines(self.path / "traces" / f"{suite}.jsonl", Trace)[0]

    def torn(self) -> list[Path]:
        """Files whose end was cut by a kill; it is left out in reading, and cut off before the next is appended."""
        patterns = ("variants/*/records/*.jsonl", "variants/*/events.jsonl", "traces/*.jsonl")
        torn = [file for one in patterns for file in self.path.glob(one) if self._lines(file, msgspec.Raw)[1]]
        tokens = self.path.glob(f"variants/*/tokens/*/*{SUFFIX}")
        return sorted([*torn, *(file for file in tokens if TokenFile(file).torn)])

    def records_path(self, variant: str, suite: str) -> Path:
        """Where the records of one arm of one suite are."""
        return self.variant_path(variant) / "records" / f"{suite}.jsonl"

    def tokens_path(self, variant: str, suite: str, kind: str = ROWS) -> Path:
        """Where the per-token logprobs of one arm of one suite are (`tokens.py`): `ROWS`, `AUDIT` or what a suite adds."""
        return self.variant_path(variant) / "tokens" / suite / f"{kind}{SUFFIX}"

    def tokens(self, variant: str, suite: str, kind: str = ROWS) -> TokenFile:
        """What is there to read; an index of it is made now.

        Raises:
            UsageError: an older evalrig filed them, one Parquet file an attempt.
        """
        path = self.tokens_path(variant, suite, kind)
        if not path.exists() and any(path.parent.glob("*.parquet")):
            raise UsageError(
                f"{path.parent}: one Parquet file an attempt, as an older evalrig filed them; use the one that wrote it"
            )
        return TokenFile(path)

    def load_path(self, variant: str, suite: str, round: str) -> Path:
        """Where a block of load is: the round's name, to which each of its files adds an ending (`loadgen/raw.py`)."""
        return self.variant_path(variant) / "load" / suite / round

    def variant_path(self, variant: str) -> Path:
        """The folder of one variant."""
        return self.path / "variants" / variant

    def _events_path(self, variant: str) -> Path:
        return self.variant_path(variant) / "events.jsonl"

    def preflight(self, variant: str) -> Preflight | None:
        """What was proved about a variant; None: it was not reached."""
        name = f"variants/{variant}/preflight.json"
        if not (self.path / name).is_file():
            return None
        return self._json(name, dict[str, Any], lambda tree: msgspec.convert(_of_schema_2(tree), Preflight))

    def write_preflight(self, found: Preflight) -> None:
        """Keep what was proved, and what the engine says it is beside it."""
        self.write(f"variants/{found.variant}/fingerprint.json", _encode(found.fingerprint))
        self.write(f"variants/{found.variant}/preflight.json", _encode(found))

    def write(self, name: str, content: bytes) -> None:
        """A whole file: the old one or the new one, never half of it."""
        path = self.path / name
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with draft.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError as error:
            _discard(draft)
            raise RunError(
                f"{path}: cannot write: {error.strerror}; free space, then `evalrig resume {self.path}`"
            ) from error

    # ---- lines

    def _append(self, path: Path, rows: Sequence[Any]) -> None:
        try:
            if path not in self._files:
                self._files[path] = _open_after_whole_lines(path)
            file = self._files[path]
            file.write(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
            file.flush()
            os.fsync(file.fileno())
        except OSError as error:
            raise RunError(
                f"{path}: cannot write: {error.strerror}; free space, then `evalrig resume {self.path}`"
            ) from error

    def _lines(self, path: Path, kind: type[T]) -> tuple[list[T], bool]:
        """Whole rows, and whether a torn line follows them."""
        if not path.is_file():
            return [], False
        whole, _, rest = path.read_bytes().rpartition(b"\n")
        try:
            return [msgspec.json.decode(line, type=kind) for line in whole.split(b"\n") if line], bool(rest)
        except msgspec.MsgspecError as error:
            raise RunError(f"{path}: a line inside the file is damaged ({error}); restore it from a copy") from error

    def _json(self, name: str, kind: type[Any], then: Callable[[Any], T]) -> T:
        path = self.path / name
        try:
            return then(msgspec.json.decode(path.read_bytes(), type=kind))
        except OSError as error:
            raise UsageError(f"{path}: cannot read: {error.strerror}; is this a whole run folder?") from error
        except (msgspec.MsgspecError, KeyError) as error:
            raise UsageError(f"{path}: damaged or of another version ({error}); restore it from a copy") from error


def _of_schema_2(proved: dict[str, Any]) -> dict[str, Any]:
    """A preflight in which the probes stand together; in schema 1 they stood beside what was read back."""
    if "probes" in proved:
        return proved
    old = {"prompt_digests": "prompt_digests", "logprob_digests": "logprob_digests", "probe_nats": "nats"}
    return {**proved, "probes": {new: proved[key] for key, new in old.items() if key in proved}}


def rounded(value: Any) -> Any:
    """A JSON tree with floats at 12 significant digits and non-finite ones as null: equal inputs, equal bytes."""
    if isinstance(value, float):
        return float(f"{value:.12g}") if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(part) for part in value]
    return value


def encode(value: Any) -> bytes:
    """Readable strict JSON of any noun, floats rounded."""
    return msgspec.json.format(msgspec.json.encode(rounded(msgspec.to_builtins(value))), indent=2) + b"\n"


def _encode(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def _discard(draft: Path) -> None:
    with contextlib.suppress(OSError):  # the reason why it could not be written is the one to tell
        draft.unlink(missing_ok=True)


def _settle(draft: Path, path: Path) -> Path:
    """Give a whole draft its name; another run may have taken it in the meantime."""
    while True:
        try:
            draft.rename(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise RunError(f"{path}: cannot write: {error.strerror}; set `output=` to another folder") from error
            path = _unused(path)
        else:
            return path


def _unused(path: Path) -> Path:
    tries: Iterable[Path] = (path, *(path.with_name(f"{path.name}-{n}") for n in range(2, 100)))
    return next(candidate for candidate in tries if not candidate.exists())


def _open_after_whole_lines(path: Path) -> BufferedWriter:
    """Open for appending; what a kill left of a last line is cut off first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file():
        content = path.read_bytes()
        keep = content.rfind(b"\n") + 1
        if keep < len(content):
            os.truncate(path, keep)
    return path.open("ab")
