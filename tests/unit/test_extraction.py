"""The program in a model's text: what a chat model, a base model and a hostile one write."""

import time
import warnings

import pytest

from evalrig.extraction import beside, called, code_in, continued, opens, stops, with_imports
from evalrig.passages import LONGEST

STUB = 'from typing import List\n\n\ndef f(x: int) -> int:\n    """Add one.\n\n    >>> f(1)\n    2\n    """\n'
"""As HumanEval asks: a signature with a docstring."""
GOOD = "def f(x):\n    return x + 1\n"


def run(code: str | None, argument: int = 1) -> object:
    """What `f` of a program gives: of the texts in this file alone."""
    assert code is not None
    names: dict[str, object] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(with_imports(code), "program", "exec"), names)
    f = names["f"]
    assert callable(f)
    return f(argument)


ANSWERS = {
    "a fence": f"```python\n{GOOD}```",
    "a fence without a language": f"```\n{GOOD}```",
    "a fence of another language's name": f"```Python3\n{GOOD}```",
    "a fence with more words": f'```python title="f.py"\n{GOOD}```',
    "a fence of tildes": f"~~~python\n{GOOD}~~~",
    "a fence that is never closed": f"Sure:\n```python\n{GOOD}",
    "a fence that opens at the end of a sentence": f"Here it is: ```python\n{GOOD}```",
    "a fence that closes at the end of a line": "```python\ndef f(x):\n    return x + 1```\nDone.",
    "a fence in a list": "1. Write it:\n   ```python\n   def f(x):\n       return x + 1\n   ```\n2. Enjoy.",
    "a fence whose end was forgotten": f"```python\n{GOOD}\n```python\nprint(f(1))\n```",
    "prose around a fence": f"Certainly! Here is it.\n\n```python\n{GOOD}```\n\nIt adds one to `x`. Let's see.",
    "a block that only calls it afterwards": f"```python\n{GOOD}```\nUse it:\n```python\nprint(f(1))\nassert f(1) == 2\n```",
    "a block with its output afterwards": f"```python\n{GOOD}```\nOutput:\n```\n2\n```",
    "a shell block before": f"```bash\npip install numpy\n```\n```python\n{GOOD}```",
    "two attempts": f"```python\ndef f(x):\n    return x - 1\n```\nWait, that is wrong:\n```python\n{GOOD}```",
    "a broken attempt before": f"```python\ndef f(x) return x\n```\nCorrected:\n```python\n{GOOD}```",
    "something in an earlier block": "```python\ndef g(x):\n    return x\n\nprint(1 / 0)\n```\n"
    "```python\ndef f(x):\n    return g(x) + 1\n```",
    "an import in an earlier block": "```python\nimport os.path as p\n```\n"
    "```python\ndef f(x):\n    return x + len(p.join('a', '')) - 1\n```",
    "something in a later block": "```python\ndef f(x):\n    return g(x)\n```\n```python\nONE = 1\ndef g(x):\n    return x + ONE\n```",
    "no fence": GOOD,
    "no fence, prose around": f"Sure, from here on:\n\n{GOOD}\nThis function adds one.\nIt's simple.",
    "no fence, an import": f"import math\n\n{GOOD}",
    "no fence, a word that parses": f"{GOOD}\nDone\n",
    "no fence, a call below": f"{GOOD}\nprint(f(1))\n",
    "thinking before": f"<think>\n```python\ndef f(x):\n    return 0\n```\n</think>\n```python\n{GOOD}```",
    "thinking without its beginning": f"def f(x): return 0\n</think>\n{GOOD}",
    "what a template leaves": f"<|im_start|>assistant\n```python\n{GOOD}```<|im_end|>\n"
    "<|im_start|>user\n```python\ndef f(x): return 0\n```",
    "an end of text": f"{GOOD}</s>",
    "doctest prompts": "```python\n>>> def f(x):\n...     return x + 1\n>>> f(1)\n2\n```",
    "Windows line ends": f"```python\n{GOOD}```\n".replace("\n", "\r\n"),
    "tabs": "```python\ndef f(x):\n\tif x:\n\t\treturn x + 1\n\treturn 1\n```",
    "tabs and blanks mixed": "```python\ndef f(x):\n    if x:\n\treturn x + 1\n    return 1\n```",
    "all of it indented": "```python\n    def f(x):\n        return x + 1\n```",
    "the signature again, with its docstring": f"```python\n{STUB}    return x + 1\n```",
    "a lambda": "```python\nf = lambda x: x + 1\n```",
    "a decorator": "```python\n@functools.lru_cache(maxsize=None)\ndef f(x):\n    return x + 1\n```",
    "an import from the future": "```python\nfrom __future__ import annotations\ndef f(x: Strange) -> int:\n    return x + 1\n```",
    "missing imports": "```python\ndef f(x: List[int]) -> Optional[int]:\n"
    "    return math.floor(x) + sum(defaultdict(int).values()) + 1\n```",
    "an odd escape": "```python\ndef f(x):\n    return x + len('\\d') - 1\n```",
}
BODIES = {
    "a body": "    return x + 1\n",
    "a body at the margin": "y = x\nreturn y + 1",
    "a body in a fence": "```python\n    y = x + 1\n    return y\n```",
    "a body at the margin in a fence": "Only the body:\n```\nfor _ in range(1):\n    x += 1\nreturn x\n```",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_program_is_found_in_an_answer_with(name: str) -> None:
    assert run(code_in(ANSWERS[name], "f")) == 2
    assert run(code_in(ANSWERS[name], "f", stub=STUB)) == 2, "also where a stub was to be completed"


@pytest.mark.parametrize("name", BODIES)
def test_a_body_alone_is_put_below_the_signature_that_was_asked_for(name: str) -> None:
    assert run(code_in(BODIES[name], "f", stub=STUB)) == 2


def test_thinking_text_inside_extraction() -> None:
    """Pitfall 16: HumanEval nearly 0 with everything else normal. A block that never closes holds no program."""
    assert code_in(f"<think>\nI would write\n```python\n{GOOD}```", "f") is None
    assert code_in(f"I would write\n```python\n{GOOD}```", "f", cut=True, thinking=True) is None
    assert run(code_in(f"I would write\n```python\n{GOOD}```", "f", cut=False, thinking=True)) == 2, "kept apart before"


@pytest.mark.parametrize(
    "text", ["", "I cannot do that.", "```\n2\n```", "```python\nprint(f(1))\nassert f(1) == 2\n```"]
)
def test_no_program_is_none(text: str) -> None:
    assert code_in(text, "f") is None
    assert code_in(text, "f", stub=STUB) is None


@pytest.mark.parametrize(
    "text", ["```python\ndef f(x):\n    return (x\n```", "Well:\ndef f(x):\n    return (x\n", "def f(x) return x"]
)
def test_a_program_with_an_error_is_a_program(text: str) -> None:
    """Else a syntax error would look like an answer without code."""
    code = code_in(text, "f")
    assert code is not None
    assert code.startswith("def f(x)")
    with pytest.raises(SyntaxError):
        compile(code, "program", "exec")


def test_of_a_cut_answer_only_what_something_ended_is_complete() -> None:
    assert code_in(f"```python\n{GOOD}", "f", cut=True) is None
    assert code_in(GOOD, "f", cut=True) is None
    assert code_in("```python\ndef f(x):\n    return x +", "f", cut=True) is None
    assert run(code_in(f"```python\n{GOOD}```\nThis fun", "f", cut=True)) == 2
    assert run(code_in(f"```python\n{GOOD}\nprint(f(", "f", cut=True)) == 2
    assert run(code_in(f"{GOOD}\nThis fun", "f", cut=True)) == 2


def test_only_missing_names_are_imported() -> None:
    assert with_imports(GOOD) == GOOD
    assert with_imports("import math\nprint(math.pi)") == "import math\nprint(math.pi)"
    assert with_imports("def gcd(a, b): ...\ngcd(1, 2)") == "def gcd(a, b): ...\ngcd(1, 2)", "its own stays its own"
    assert with_imports("print(sqrt(2), Counter())") == (
        "from collections import Counter; from math import sqrt\nprint(sqrt(2), Counter())"
    )
    assert with_imports("def f(:") == "def f(:"


def test_a_class_is_left_as_it_is() -> None:
    code = "class Solution:\n    def f(self, x):\n        return x + 1\n"
    assert code_in(f"```python\n{code}```\n```python\nprint(Solution().f(1))\n```", "Solution.f") == code.rstrip("\n")
    assert code_in(f"```python\n{code}```", "f") == code.rstrip("\n")


def test_a_program_that_reads_its_input_is_told_from_its_samples() -> None:
    program = "n = int(input())\nprint(n + 1)"
    text = f"For the input\n```\n1\n```\nthis program\n```python\n{program}\n```\nprints\n```\n2\n```\n```python\nprint(2)\n```"
    assert code_in(text) == program
    assert code_in("```python\nprint(2)\n```") == "print(2)"
    broken = "n = int(input()\nprint(n)"
    assert code_in(f"```python\n{broken}\n```") == broken


def test_the_stub_gives_what_else_it_defines() -> None:
    stub = 'def g(x):\n    return x + 1\n\n\ndef f(x):\n    """Use g."""\n'
    assert run(code_in("```python\ndef f(x):\n    return g(x)\n```", "f", stub=stub)) == 2
    assert beside(stub, "f") == "def g(x):\n    return x + 1"
    assert beside("import math\ndef f(x):", "f") == "import math"


CONTINUED = {
    "a body": "    return x + 1\n",
    "a body, then other things": "    return x + 1\n\n\nprint(f(1) / 0)\n",
    "a body, then prose": "    return x + 1\n\nThis function isn't hard.\n",
    "a body, then a fence": "    return x + 1\n```\n",
    "a body, then a template's end": "    return x + 1<|endoftext|>def f(x): return 0",
    "a body that lost its first blank": "   y = x + 1\n    return y\n",
    "a body that lost all blanks": "return x + 1",
    "a body by tabs": "\treturn x + 1\n",
    "a body with a text at the margin": '    y = """\nat the margin\n"""\n    return x + 1 + 0 * len(y)\n\nprint(1 / 0)\n',
    "blank lines first": "\n\n    return x + 1\n",
    "the whole function again": f"{GOOD}\nprint(1 / 0)",
    "the whole function again, in a fence": f"```python\n{GOOD}```",
    "an import and the whole function": f"\nimport math\n\n{GOOD}",
}


@pytest.mark.parametrize("name", CONTINUED)
def test_a_continuation_is(name: str) -> None:
    code = continued(STUB, CONTINUED[name], "f")
    assert code is not None
    assert run(code.replace("print(1 / 0)", "")) == 2
    if "whole" not in name:
        assert code.startswith(STUB)
        assert "1 / 0" not in code


def test_a_continuation_without_words_is_none_and_one_with_an_error_is_a_program() -> None:
    assert continued(STUB, "\n  \n", "f") is None
    broken = continued(STUB, "    return (x\n", "f")
    assert broken is not None
    with pytest.raises(SyntaxError):
        compile(broken, "program", "exec")


def test_a_cut_continuation_is_complete_once_something_stands_at_the_margin() -> None:
    assert continued(STUB, "    return x + 1", "f", cut=True) is None
    assert run(continued(STUB, "    return x + 1\n\nif __na", "f", cut=True)) == 2


def test_below_a_docstring_a_program_is_written() -> None:
    asked = '"""\nWrite f.\n"""\n'
    assert not opens(asked)
    assert opens(STUB)
    assert opens("def f(x):")
    text = "def g(x):\n    return x\n\n\ndef f(x):\n    return g(x) + 1\n\n\nNext task\ndef f(x):\n    return 0\n"
    assert run(continued("", text, "f")) == 2
    assert continued("", "I do not know", "f") is None
    assert "\ndef " in stops(STUB)
    assert "\ndef " not in stops(asked), "a second function belongs to the program"


def test_names_that_tests_use_of_a_solution() -> None:
    solution = "class Pair: ...\ndef f(x): ...\ndef unused(): ...\n"
    assert called("assert set(f([Pair(1)])) == {1}\nassert f(2)", solution) == ["f", "Pair"]
    assert called("assert (", solution) == []


HOSTILE = {
    "nothing but fences": "```\n" * 250_000,
    "nothing but backticks": "`" * 1_000_000,
    "fences with words": "```python\n" * 100_000,
    "definitions without an end": "def f(\n" * 140_000,
    "short functions": "def f(x): return x\n" * 50_000,
    "functions and prose": "def f(x):\n    return x\nand then\n" * 30_000,
    "one long line": "def f(x): return " + "x" * 1_000_000,
    "brackets": "```python\n" + "(" * 1_000_000,
    "signs": "```python\ndef f(x): return " + "-" * 1_000_000,
    "comparisons": "```python\nx = a" + "<a" * 500_000,
    "sums": ("```python\nx = a" + "+a" * 24_000 + "\n```\n") * 20,
    "blanks": "def f(x):\n" + " " * 1_000_000 + "x",
    "blank lines": "\n" * 1_000_000,
    "thinking": "<think>" * 140_000,
    "ends of thinking": "</think>" * 125_000,
    "template marks": "<|im_start|>" * 80_000,
    "zero bytes": "def f(x):\n    return x\0\n" * 40_000,
    "quotes": '"""\n' * 250_000,
    "decorators": "@a\n" * 300_000,
    "deep blocks": "".join(" " * n + "if x:\n" for n in range(1400)),
    "lone surrogates": "def f(x): return '\ud800'\n" * 30_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_megabyte_takes_bounded_time(name: str) -> None:
    """No pattern takes the square of the time, nothing is too deep, and nothing is run."""
    text = HOSTILE[name]
    began = time.process_time()
    for found in (
        code_in(text, "f"),
        code_in(text, "f", cut=True, stub=STUB),
        continued(STUB, text, "f"),
        continued("", text, "f"),
    ):
        assert found is None or len(found) <= len(text) + len(STUB) + LONGEST
    assert time.process_time() - began < 30
