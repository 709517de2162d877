"""The program's process. It was forked before the tests were read: whatever the program does here, it finds nothing."""

from __future__ import annotations

import builtins
import os
import sys
from _collections import deque  # pyright: ignore[reportMissingImports]

from evalrig.proctored.channel import Channel, Gone, TooLong
from evalrig.proctored.plain import NoPlainValue, decode, encode
from evalrig.proctored.program import Module, compiled, described, entry, load
from evalrig.proctored.script import failing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

_CHANGEABLE = (list, dict, set, bytearray, deque)


class Candidate:
    """Does what the test process asks, one message after the other."""

    def __init__(self, channel: Channel) -> None:
        self.case: str | None = None
        self.channel = channel
        self.code: CodeType | None = None
        self.module = Module("program")
        self.function: Any = None
        self.builtins = dict(builtins.__dict__)

    def serve(self) -> tuple[CodeType, str]:
        """Until the test process is gone. Returns only in the new process of a case: the program and the entry point."""
        while self.case is None or self.code is None:
            try:
                order, *rest = decode(self.channel.receive())
                answer = getattr(self, f"on_{order}")(*rest)
                if self.case is None:
                    self.channel.send(answer if isinstance(answer, bytes) else encode(answer))
            except (Gone, OSError):
                os._exit(0)
            except TooLong:
                self.channel.send(encode(["odd", "more than 64 MB"]))
        return self.code, self.case

    def on_compile(self, code: str) -> list[Any]:
        """`ready`, or `syntax` with the reason. Nothing of the program has run yet."""
        try:
            found = compiled(code)
        except (MemoryError, RecursionError) as error:
            return ["left", described(error)]
        if isinstance(found, str):
            return ["syntax", found]
        self.code = found
        return ["ready"]

    def on_load(self, entry_point: str) -> list[Any]:
        """`ready`, or `left` with what it raised."""
        assert self.code
        try:
            self.module = load(self.code, "program")
            self.function = entry(self.module, entry_point) if entry_point else None
        except BaseException as error:  # noqa: BLE001  the program may raise anything
            return ["left", described(error)]
        return ["ready"]

    def on_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | bytes:
        """`gave` with the value and the arguments that changed, `raised`, `odd` or `left`."""
        changeable = [at for at, value in enumerate(args) if isinstance(value, _CHANGEABLE)]
        before = [encode(args[at]) for at in changeable]
        try:
            value = self.function(*args, **kwargs)
            after = [encode(args[at]) for at in changeable]
            changed = [[at, args[at]] for number, at in enumerate(changeable) if after[number] != before[number]]
            return encode(["gave", value, changed])
        except NoPlainValue as error:
            return ["odd", str(error)]
        except Exception as error:  # noqa: BLE001  the program may raise anything
            return ["raised", [kind.__name__ for kind in type(error).__mro__], described(error)]
        except BaseException as error:  # noqa: BLE001  sys.exit and its like
            return ["left", described(error)]

    def on_case(self, entry_point: str) -> list[Any]:
        """`ended` with the status of a new process and the seconds of processor time that it took."""
        pid = os.fork()
        if not pid:
            self.case = entry_point
            return []
        _, status, usage = os.wait4(pid, 0)
        return ["ended", status, usage.ru_utime + usage.ru_stime]

    def on_tests(self, setup: str, tests: str, word: str) -> list[Any]:
        """Without an entry point: the tests run here, with the built-in functions as they were before the program ran.

        `done` with the word, or `failed` with the class and what happened.
        """
        sys.settrace(None)
        sys.setprofile(None)
        own = {name: value for name, value in self.module.__dict__.items() if name not in self.builtins}
        names = {**own, "__builtins__": self.builtins, "__name__": "program"}
        try:
            exec(compile(setup, "<setup>", "exec", dont_inherit=True), names)
            exec(compile(tests, "<tests>", "exec", dont_inherit=True), names)
        except AssertionError as error:
            return ["failed", "wrong_answer", failing(error, tests, None)]
        except BaseException as error:  # noqa: BLE001  the program may raise anything
            return ["failed", "crash", described(error)]
        return ["done", word]
