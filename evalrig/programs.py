"""The user's own installation of an engine: how it is called, and which flags its version knows."""

import functools
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from evalrig.content import cache_dir
from evalrig.errors import UsageError

SECONDS = 300
"""For `--help`: imports take a minute on a busy machine."""
FEWEST = 20
"""Flags that the help of such an engine has at least; with fewer it was not the whole help."""
SECRET_FLAG = re.compile(r"--(?:[\w-]+-)?(?:api-key|hf-token|password|secret)")
SECRET_NAME = re.compile(r"(?:\w+_)?(?:KEY|TOKEN|PASSWORD|SECRET)", re.IGNORECASE)
VERSION = """\
import importlib.metadata as m, sys
for name in sys.argv[1:]:
    try:
        print(m.version(name))
        break
    except m.PackageNotFoundError:
        pass"""


@dataclass(kw_only=True)
class Program:
    """Which installation runs, and how it is stopped."""

    python: str = "python3"
    """The interpreter of the environment that has the engine."""
    command: list[str] = field(default_factory=list[str])
    """In place of `python -m ...`: for instance `docker run --rm --network host --name {name} IMAGE ...` or `srun ...`.
    `{name}` is a name of this run's own. The checkpoint must have the same path inside as outside."""
    stop_command: list[str] = field(default_factory=list[str])
    """Run after the end, also when the harness was killed: ending `docker run` leaves the container (`docker rm -f {name}`)."""
    env: dict[str, str] = field(default_factory=dict[str, str])

    def argv(self, module: str, name: str) -> list[str]:
        """The program without its arguments."""
        return _named(self.command, name) if self.command else [self.python, "-m", module]

    def stopping(self, name: str) -> list[str]:
        """The stop command of that start."""
        return _named(self.stop_command, name)


def refuse_secrets(words: Sequence[str], where: str) -> None:
    """The run file is kept with the run and printed by `show`.

    Raises:
        UsageError: a word that gives a secret, as `--api-key X`, `--api-key=X` or `HF_TOKEN=X`.
    """
    for word, after in zip_longest(words, words[1:], fillvalue=""):
        name, _, value = word.partition("=")
        flag = SECRET_FLAG.fullmatch(name)
        if (flag and (value or (after and not after.startswith("-")))) or (SECRET_NAME.fullmatch(name) and value):
            remedy = "leave it out" if flag else "export it before the run, and programs inherit it"
            raise UsageError(f"{where}: the value of `{name}` would be written down with the run; {remedy}")


def known_flags(program: Program, package: str, module: str, where: str) -> frozenset[str]:
    """The flags in the program's help; read once per version, kept in the user's cache.

    Raises:
        UsageError: the program is not there, or does not answer.
    """
    argv, env = tuple(program.argv(module, "evalrig-help")), tuple(sorted(program.env.items()))
    if program.command:
        return _asked(argv, env, f"{where}.command")  # an image can change under its name: not kept
    version = _output([program.python, "-c", VERSION, package, f"{package}-cpu"], env, f"{where}.python").strip()
    if not version:
        raise UsageError(f"{where}.python: `{program.python}` has no {package}; name the Python that has it")
    kept = cache_dir() / "flags" / f"{package}-{re.sub(r'[^0-9A-Za-z.+-]', '_', version)}.txt"
    if kept.is_file() and len(found := frozenset(kept.read_text("utf-8").split())) >= FEWEST:
        return found
    found = _asked(argv, env, f"{where}.python")
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text("\n".join(sorted(found)) + "\n", "utf-8")
    return found


@functools.cache
def _asked(argv: tuple[str, ...], env: tuple[tuple[str, str], ...], where: str) -> frozenset[str]:
    said = ""
    for ask in ("--help=all", "--help"):  # vLLM's plain help is a list of groups
        said = _output([*argv, ask], env, where)
        flags = frozenset(re.findall(r"(?<![\w-])--[a-zA-Z][\w-]*", said))
        if len(flags) >= FEWEST:
            return flags
    last = (said.strip().splitlines() or ["nothing"])[-1][:160]
    raise UsageError(f"{where}: `{' '.join(argv)} --help` names no flags, but says: {last}; correct the program")


def _output(argv: Sequence[str], env: Sequence[tuple[str, str]], where: str) -> str:
    try:
        done = subprocess.run(
            argv,
            env={**os.environ, **dict(env)},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            errors="replace",
        )
    except OSError as error:
        raise UsageError(f"{where}: cannot run `{argv[0]}`: {error.strerror}; name a program that is there") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"{where}: `{' '.join(argv[:4])}` did not answer in {SECONDS} s; correct it") from error
    return done.stdout or done.stderr


def _named(words: Sequence[str], name: str) -> list[str]:
    return [word.replace("{name}", name) for word in words]
