"""The two errors a user sees bare, as one line `where: what is wrong; what to do`; any other error is a bug and keeps its traceback."""


class UsageError(Exception):
    """The user has to change something (run file, path, argument). Exit code 2."""


class RunError(Exception):
    """The run could not be carried out (an engine, a disk, an interrupted process). Exit code 3."""


class EngineError(RunError):
    """An engine failed to start, to answer or to stop: evidence about the engine, never a score of the model.

    Its words come from logs and replies and end on a terminal: one line, and nothing that a terminal obeys.
    """

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text))


class ClientError(RunError):
    """The load client failed (no free file descriptors, a worker process that died): evidence about no engine, so a block of load is
    void in both arms. One line, like `EngineError`."""

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text))


def one_line(text: str) -> str:
    """Foreign words as one line that a terminal does not obey."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in " ".join(text.split()))
