"""The test process: runs the tests, asks the program's process for values, and alone can write a mark."""

from __future__ import annotations

import _signal as signal  # pyright: ignore[reportMissingImports]  `signal` itself imports `enum`
import builtins
import os
import sys
import time

from evalrig.proctored.channel import Channel, Gone, TooLong
from evalrig.proctored.plain import Nonsense, NoPlainValue, TooDeep, decode, encode
from evalrig.proctored.program import Module, described
from evalrig.proctored.script import NAME, failing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, NoReturn

SETUP = "<setup>"


class Over(BaseException):
    """The exam has ended, whatever the tests go on to do: the class of failure and a detail."""

    def __init__(self, failure: str, detail: str) -> None:
        super().__init__(failure, detail)
        self.failure = failure
        self.detail = detail


class Fault(Exception):
    """The tests are wrong, not the program."""


class Asked:
    """The program's process, as the tests see it: a function."""

    def __init__(self, pid: int, channel: Channel) -> None:
        self.pid = pid
        self.channel = channel
        self.cpu_seconds = 0.0
        self.name = ""
        self.over: Over | None = None
        self.calls = 0
        self.last: tuple[str, tuple[Any, ...], Any] | None = None
        self.raised: tuple[BaseException, str] | None = None
        self.status: int | None = None
        self.cpu = 0.0

    def end(self, failure: str, detail: str) -> NoReturn:
        """Raises `Over`; only the first counts."""
        self.over = self.over or Over(failure, detail)
        raise self.over

    def clock(self, seconds: float) -> None:
        """The exam ends so many seconds from now. 0: it does not."""

        def late(_signal: int, _frame: FrameType | None) -> None:
            self.end("timeout", f"not done within {seconds:g} s")

        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program may send it: it must not break off a test
        signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def ask(self, *order: Any) -> list[Any]:
        """Send an order and read the answer to it."""
        if self.over:
            raise self.over
        message = encode([*order])
        try:
            self.channel.send(message)
            answer = decode(self.channel.receive(self._watch))
        except (Gone, OSError):
            self.end(*self._fate())
        except TooLong:
            self.end("wrong_answer", "a value of more than 64 MB")
        except Nonsense:
            self.end("crash", "answered with nonsense")
        if type(answer) is not list or not answer or type(answer[0]) is not str:
            self.end("crash", "answered with nonsense")
        if answer[0] in ("left", "odd", "failed"):
            words = [word if type(word) is str else "" for word in answer[1:]]
            if answer[0] == "failed" and words[:1] == ["wrong_answer"]:
                self.end("wrong_answer", words[-1])
            odd = answer[0] == "odd"
            self.end(
                "wrong_answer" if odd else "crash",
                f"returned {words[-1]}, which is no plain value" if odd else words[-1],
            )
        return answer

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """What the tests call in place of the function under test."""
        try:
            answer = self.ask("call", args, kwargs)
        except TooDeep as error:  # built from what the program returned
            self.end("wrong_answer", f"returned {error}")
        except NoPlainValue as error:
            raise Fault(f"the tests pass {error} to {self.name!r}, and only plain values reach a program") from None
        self.calls += 1
        if answer[0] == "raised" and len(answer) == 3:
            raise self._error(answer[1], answer[2])
        if answer[0] != "gave" or len(answer) != 3 or type(answer[2]) is not list:
            self.end("crash", "answered with nonsense")
        shown = args
        for change in answer[2]:
            self._put_back(args, change)
        self.last = (self.name, shown, answer[1])
        return answer[1]

    def _put_back(self, args: tuple[Any, ...], change: Any) -> None:
        """A function may work by changing what it is given."""
        if type(change) is not list or len(change) != 2 or type(change[0]) is not int or not 0 <= change[0] < len(args):
            self.end("crash", "answered with nonsense")
        mine, theirs = args[change[0]], change[1]
        if type(mine) is not type(theirs) or (
            not isinstance(mine, (list, dict, set, bytearray)) and not hasattr(mine, "popleft")
        ):
            self.end("crash", "answered with nonsense")
        mine.clear()
        if isinstance(mine, (dict, set)):
            mine.update(theirs)
        else:
            mine.extend(theirs)

    def _error(self, names: Any, words: Any) -> BaseException:
        """Of the first built-in class among the raised one's; `StopIteration` would end a loop of the tests early, as if all was well."""
        words = words if type(words) is str else ""
        error: BaseException = RuntimeError(words)
        for name in names if type(names) is list else ():
            kind = getattr(builtins, name, None) if type(name) is str else None
            if (
                isinstance(kind, type)
                and issubclass(kind, Exception)
                and kind not in (StopIteration, StopAsyncIteration)
            ):
                try:
                    error = kind(words.partition(": ")[2])
                except TypeError:  # wants more than words
                    continue
                break
        self.raised = (error, words)
        return error

    def _watch(self) -> None:
        """A child of the program may hold its pipe open when the program is gone."""
        if self._ended() and not self.channel.waiting():
            raise Gone

    def _ended(self) -> bool:
        if self.status is None:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self.status, self.cpu = status, usage.ru_utime + usage.ru_stime
        return self.status is not None

    def _fate(self) -> tuple[str, str]:
        """Why it does not answer."""
        for _ in range(50):
            if self._ended():
                return fate(self.status or 0, self.cpu, self.cpu_seconds)
            time.sleep(0.01)
        return "crash", "closed its files"


def fate(status: int, cpu: float, cpu_seconds: float) -> tuple[str, str]:
    """How a process ended that was to go on."""
    if not os.WIFSIGNALED(status):
        return "crash", f"ended with exit status {os.WEXITSTATUS(status)}"
    if cpu >= cpu_seconds - 0.5:
        return "timeout", f"used {cpu:.0f} s of processor time"
    return "crash", f"killed by signal {os.WTERMSIG(status)}"


def examine(sheet: dict[str, Any], asked: Asked) -> tuple[str, str]:
    """Class of failure, or empty, and a detail.

    Raises:
        Fault: see there.
    """
    asked.name = sheet["entry_point"]
    sys.modules["tests"] = module = Module("tests")  # data classes look their module up
    names = module.__dict__
    script = _prepared(sheet, names)
    asked.clock(sheet["seconds"])
    try:
        answer = asked.ask("compile", sheet["code"])
        if answer[0] == "syntax":
            return "syntax_error", str(answer[-1])
        asked.ask("load", asked.name)
        if asked.name:
            _run(script, names, asked, sheet["tests"])
        elif asked.ask("tests", sheet["setup"], sheet["tests"], sheet["done"])[1:] != [sheet["done"]]:
            return "crash", "answered with nonsense"
    except Over:
        pass
    return (asked.over.failure, asked.over.detail) if asked.over else ("", "")


def _prepared(sheet: dict[str, Any], names: dict[str, Any]) -> Any:
    """The tests, compiled, and their setup run: what fails before the program has begun is no fault of it."""
    try:
        setup = compile(sheet["setup"], SETUP, "exec", dont_inherit=True)
        script = compile(sheet["tests"], NAME, "exec", dont_inherit=True)
        if sheet["entry_point"]:
            exec(setup, names)
    except BaseException as error:  # noqa: BLE001  whatever a script of ours raises
        raise Fault(described(error)) from None
    return script


def _run(script: Any, names: dict[str, Any], asked: Asked, tests: str) -> None:
    """Returns if all went well; else ends the exam."""
    function = asked.name.rpartition(".")[2]

    def candidate(*args: Any, **kwargs: Any) -> Any:
        return asked.call(*args, **kwargs)

    candidate.__name__ = candidate.__qualname__ = function
    names[function] = names["candidate"] = candidate
    try:
        exec(script, names)
        if callable(names.get("check")):
            names["check"](candidate)
    except (Over, Fault):
        raise
    except BaseException as error:  # noqa: BLE001  a test may raise anything
        _blame(error, asked, tests)
    if not asked.over and not asked.calls:
        raise Fault(f"the tests never call {asked.name!r}")


def _blame(error: BaseException, asked: Asked, tests: str) -> NoReturn:
    """Whose fault an error is that no test caught. Before the first call nothing of the program has reached the tests."""
    if not asked.calls:
        raise Fault(described(error))
    raised = asked.raised[0] if asked.raised else None
    chain, link = [error], error
    while (link := link.__cause__ or link.__context__) and link not in chain:
        chain.append(link)
    if asked.raised and (error is raised or (raised in chain and not isinstance(error, AssertionError))):
        asked.end("crash", asked.raised[1])
    if isinstance(error, AssertionError):
        asked.end("wrong_answer", failing(error, tests, asked.last))
    if isinstance(error, (NameError, ImportError, SystemExit)) and not _evaluated(error):
        raise Fault(described(error))
    asked.end("wrong_answer", failing(error, tests, asked.last))


def _evaluated(error: BaseException) -> bool:
    """It came from a text that the tests evaluated, which the program may have returned."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return bool(trace) and trace.tb_frame.f_code.co_filename == "<string>"
