"""A pickle is a program: one that holds a text is read, every other one is refused, and none is ever run."""

import base64
import os
import pickle
import pickletools
import zlib
from pathlib import Path
from typing import Any

import pytest
from toys.contest import packed, zipped

from evalrig.pickled_text import one_string, unpacked


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("text", ["", "a", "tests: é \U0001f600 \n", "x" * 255, "x" * 70_000, "é" * 300_000])
def test_a_text_comes_back_whatever_the_protocol(text: str, protocol: int) -> None:
    assert unpacked(packed(text, protocol)) == text
    assert one_string(pickletools.optimize(pickle.dumps(text, protocol))) == text


class Deed:
    """What unpickling it would do: leave a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_hostile_pickle_is_refused_and_does_nothing(tmp_path: Path) -> None:
    for protocol in range(6):
        trap = pickle.dumps(Deed(tmp_path / "done"), protocol)
        with pytest.raises(ValueError, match="never loaded"):
            one_string(trap)
    pickle.loads(pickle.dumps(Deed(tmp_path / "done")))
    assert (tmp_path / "done").is_dir(), "the trap of this test catches nothing"


ONE = pickle.dumps("text", 4)


@pytest.mark.parametrize(
    "pickled",
    [
        b"",
        b".",
        b"no pickle",
        pickle.dumps(["text"]),
        pickle.dumps(("text", "text")),
        pickle.dumps(b"text"),
        pickle.dumps(7),
        pickle.dumps(None),
        ONE[:-1],
        ONE + b".",
        ONE + ONE,
        pickle.dumps("x" * 70_000, 4)[:-100],
        b"\x80\x04\x8c\x01a\x8c\x01b.",
        b"\x80\x04\x8c\x01a\x94\x94\x94\x94\x94\x94\x94.",
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xffa.",
        b"\x80\x04X\xff\xff\xff\xffa.",
        b"\x8c\x01\xff.",
        b"Pos.system\n.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    ],
    ids=range(19),
)
def test_anything_but_one_string_is_refused(pickled: bytes) -> None:
    with pytest.raises(ValueError, match=r"^a pickle of more than one string"):
        unpacked(zipped(pickled))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not zlib|cut"),
        ("not base 64!", "neither JSON nor base64"),
        ("QUJD", "not zlib in base64"),
        (base64.b64encode(zlib.compress(ONE)[:-3]).decode(), "cut"),
        (base64.b64encode(zlib.compress(ONE) + b"more").decode(), "followed by something else"),
    ],
)
def test_what_is_not_packed_so_is_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        unpacked(text)


def test_a_bomb_is_not_unpacked() -> None:
    bomb = packed("0" * 5_000_000)
    assert len(bomb) < 10_000
    with pytest.raises(ValueError, match="more than 1,000,000 bytes once unpacked"):
        unpacked(bomb, 1_000_000)
