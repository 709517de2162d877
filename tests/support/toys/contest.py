"""Contest problems in LiveCodeBench's release format, made up for one test."""

import base64
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

STDIN = ({"input": "1 2\n", "output": "3\n", "testtype": "stdin"},)
HIDDEN = ({"input": "20 22\n", "output": "42\n", "testtype": "stdin"},)


def packed(text: str, protocol: int = 4) -> str:
    """As release files pack hidden tests."""
    return base64.b64encode(zlib.compress(pickle.dumps(text, protocol))).decode()


def zipped(pickled: bytes) -> str:
    """Any pickle in the same wrapping."""
    return base64.b64encode(zlib.compress(pickled)).decode()


def row(name: str = "sum", **fields: Any) -> dict[str, Any]:
    """One line of a release file; the tests as lists are written as the format has them."""
    whole: dict[str, Any] = {
        "question_title": "Sum",
        "question_content": "Print the sum of two numbers.",
        "platform": "evalrig",
        "question_id": name,
        "contest_id": "c1",
        "contest_date": "2024-03-05T00:00:00",
        "starter_code": "",
        "difficulty": "easy",
        "public_test_cases": STDIN,
        "private_test_cases": HIDDEN,
        "metadata": {},
    } | fields
    for key in ("public_test_cases", "private_test_cases", "metadata"):
        if not isinstance(whole[key], str):
            whole[key] = json.dumps(whole[key])
    return whole


def written(path: Path, *rows: dict[str, Any] | str) -> Path:
    """A release file of rows, or of lines as they are."""
    path.write_text("".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in rows))
    return path
