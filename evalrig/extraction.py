"""The program in a model's text. Pure; the text is hostile until the sandbox has it."""


def code_in(text: str, entry_point: str = "", cut: bool = False, thinking: bool = False) -> str | None:
    """The Python program that an answer gives; None: none, or none that was complete.

    `entry_point`: the name that it must define, which chooses between several blocks. `cut`, `thinking`: as in `answer.found`.
    """
    raise NotImplementedError
