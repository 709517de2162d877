"""Text that lies packed in a file as base64 of zlib of a pickle. It is read without unpickling: a pickle is a program."""

import base64
import pickletools
import zlib

MOST = 1 << 30
"""Bytes that a packed text may have once unpacked."""
_STRINGS = ("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE")
_STORES = ("MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT")
"""What a pickler writes after a string, so that it could be referred to later."""
_LONGEST = 6
"""Opcodes of the longest pickle of one string: protocol, frame, string, frame, store, stop."""


def unpacked(text: str, most: int = MOST) -> str:
    """The text in base64 of zlib of the pickle of one string.

    Raises:
        ValueError: it is anything else; what, in a few words.
    """
    try:
        packed = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ValueError("neither JSON nor base64") from error
    inflate = zlib.decompressobj()
    try:
        pickled = inflate.decompress(packed, most)
    except zlib.error as error:
        raise ValueError(f"not zlib in base64 ({error})") from error
    if inflate.unconsumed_tail:
        raise ValueError(f"more than {most:,} bytes once unpacked")
    if not inflate.eof or inflate.unused_data:
        raise ValueError("zlib data that is cut, or followed by something else")
    return one_string(pickled)


def one_string(pickled: bytes) -> str:
    """The string that a pickle holds, if that is all it holds. Nothing of the pickle is carried out.

    Raises:
        ValueError: the pickle holds or does something else.
    """
    names: list[str] = []
    found, end = "", 0
    try:
        for opcode, argument, position in pickletools.genops(pickled):
            if opcode.name in _STRINGS and isinstance(argument, str):
                found = argument
            elif opcode.name not in ("PROTO", "FRAME", "STOP", *_STORES) or len(names) >= _LONGEST:
                raise ValueError(f"opcode {opcode.name}")
            names.append(opcode.name)
            end = (position or 0) + 1
    except ValueError as error:
        raise ValueError(f"a pickle of more than one string ({error}): never loaded, it could run a program") from error
    if not _one_string([name for name in names if name != "FRAME"]) or end != len(pickled):
        raise ValueError("a pickle of more than one string: never loaded, it could run a program")
    return found


def _one_string(names: list[str]) -> bool:
    rest = names[1:] if names[:1] == ["PROTO"] else names
    return rest[:1] != [] and rest[0] in _STRINGS and rest[-1] == "STOP" and rest[1:-1] in ([], *([s] for s in _STORES))
