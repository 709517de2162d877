"""The program in a model's text. Pure; the text is hostile until the sandbox has it.

Nothing here is run, and a long text costs seconds at most (passages.py).
"""

import ast
import re
import textwrap
import typing
from collections.abc import Sequence

from evalrig.passages import (
    DEFINITIONS,
    LONGEST,
    START,
    Block,
    block_of,
    blocks_in,
    bound,
    missing,
    name_of,
    parsed,
    passages_in,
    source_of,
)

MODULES = (
    "bisect",
    "collections",
    "copy",
    "datetime",
    "functools",
    "heapq",
    "itertools",
    "json",
    "math",
    "operator",
    "random",
    "re",
    "statistics",
    "string",
    "sys",
)
PARTS = {
    "bisect": "bisect_left bisect_right insort",
    "collections": "Counter OrderedDict defaultdict deque namedtuple",
    "functools": "cache cmp_to_key lru_cache reduce",
    "heapq": "heapify heappop heappush",
    "itertools": "accumulate chain combinations groupby permutations product",
    "math": "ceil comb factorial floor gcd inf isqrt sqrt",
    "typing": " ".join({*typing.__all__} - {"Counter", "OrderedDict"}),
}
STANDARD = {module: f"import {module}" for module in MODULES} | {
    name: f"from {module} import {name}" for module, names in PARTS.items() for name in names.split()
}
"""What a program may use without importing it: a forgotten import of a standard name is not what a suite measures."""
BODY_STOPS = ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint", "\nassert ", "\n```")
"""End the continuation of a function: the next thing at the margin."""
SCRIPT_STOPS = ("\nprint(", "\nassert ", "\nif __name__", '\n"""', "\n```")
"""End a program that is written below a docstring."""

_LEFTOVER = re.compile(r"<\|(?:im_end|endoftext|end_of_text|eot_id|eom_id|end|user|observation)\|>|</s>(?=\s*\Z)")
_OPENING = re.compile(r"\A\s*<\|(?:im_start|assistant|start_header_id)\|>(?:assistant)?(?:<\|end_header_id\|>)?\s*")
_BODY_END = re.compile(r"^\S", re.MULTILINE)
_TRIES = 12


def code_in(text: str, entry_point: str = "", cut: bool = False, thinking: bool = False, stub: str = "") -> str | None:
    """The Python program that an answer gives; None: none, or none that was complete.

    `entry_point`: the name that it must define, which chooses between several blocks. `cut`, `thinking`: as in `answer.found`.
    `stub`: the signature (and what stands before it) that was asked to be completed: a body alone is put below it, and what else
    it defines is there for the program.
    """
    rest = _spoken(text, cut, thinking)
    if rest is None:
        return None
    rest = rest[-4 * LONGEST :]
    for blocks in (list(blocks_in(rest)), list(passages_in(rest[-LONGEST:]))):
        shown = [block for block in blocks if block.closed or not cut]
        if (found := _chosen(shown, entry_point, stub)) is not None:
            return found
    return None if cut else _remainder(rest, entry_point, stub)


def continued(stub: str, text: str, entry_point: str, cut: bool = False) -> str | None:
    """The program that a text makes as the continuation of `stub`; None: none, or none that was complete.

    A function that `stub` opens ends at the first line back at the margin; a text that begins at the margin with the whole
    function again is taken by itself. Below a docstring the text is the program.
    """
    text = _plain(text)
    if not text.strip():
        return None
    if not opens(stub):
        passages = [block for block in passages_in(text[:LONGEST]) if block.closed or not cut]
        first = next((n for n, block in enumerate(passages) if _defines(block.tree, entry_point)), len(passages))
        found = _chosen(passages[: first + 1], entry_point, "")
        return found if found is not None or cut else _remainder(text, entry_point, "")
    if START.match(text.lstrip("\n")) or text.lstrip().startswith("```"):
        whole = code_in(text, entry_point, cut, stub=stub)
        if whole is not None and _defines(parsed(whole), entry_point):
            return whole
    return _body(stub, text, cut)


def opens(stub: str) -> bool:
    """Does a text end inside a function, so that a body is what continues it?"""
    last = stub.rstrip().rpartition("\n")[2]
    return last[:1] in (" ", "\t") or last.endswith(":")


def stops(prompt: str) -> tuple[str, ...]:
    """Where an engine may end the continuation of a prompt."""
    return BODY_STOPS if opens(prompt) else SCRIPT_STOPS


def with_imports(code: str) -> str:
    """A program with the imports of standard names before it that it needs and lacks."""
    tree = parsed(code)
    if not (needed := sorted(missing(tree) & STANDARD.keys()) if tree else []):
        return code
    return headed(code, "; ".join(STANDARD[name] for name in needed))


def headed(code: str, head: str) -> str:
    """A program with lines before it; its `from __future__` lines stay first, as they must."""
    lines = code.split("\n")
    future = [line for line in lines if line.startswith("from __future__ import ")]
    rest = [line for line in lines if not line.startswith("from __future__ import ")]
    return "\n".join([*future, head, *rest])


def beside(stub: str, entry_point: str) -> str:
    """What a stub defines beside its entry point, as source."""
    tree = parsed(stub) or parsed(f"{stub.rstrip()}\n{_margin(stub)}pass\n")
    nodes = [node for node in tree.body if not _is(node, entry_point)] if tree else []
    return "\n".join(source_of(stub, node) for node in nodes)


def called(tests: str, solution: str) -> list[str]:
    """The names that a solution defines and tests use, in the tests' order."""
    tree, ours = parsed(tests), parsed(solution)
    defined = {name for node in ours.body for name in bound(node)} if ours else set[str]()
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)] if tree else []
    return list(dict.fromkeys(n.id for n in sorted(names, key=lambda n: (n.lineno, n.col_offset)) if n.id in defined))


def _spoken(text: str, cut: bool, thinking: bool) -> str | None:
    """What follows the thinking; None: it never ended."""
    _, left, rest = text.rpartition("</think>")
    if (cut and thinking and not left) or "<think>" in rest:
        return None
    return _plain(rest)


def _plain(text: str) -> str:
    """With one kind of line end, and without what a template leaves."""
    text = _OPENING.sub("", text.replace("\r\n", "\n").replace("\r", "\n"), count=1)
    leftover = _LEFTOVER.search(text)
    return text[: leftover.start()] if leftover else text


def _chosen(blocks: Sequence[Block], entry_point: str, stub: str) -> str | None:
    """The last block that defines the entry point; one that tries to; a body; the last that is a program at all."""
    for number in reversed(range(len(blocks))):
        if _defines(blocks[number].tree, entry_point):
            return _with_needed(blocks, number, stub)
    broken = [block for block in blocks if block.tree is None and _attempts(block.text, entry_point)]
    if broken:
        return broken[-1].text
    if stub and (bodies := [body for block in blocks if (body := _as_body(stub, block.text))]):
        return bodies[-1]
    for number in reversed(range(len(blocks))):
        if _is_program(blocks[number].tree, bool(entry_point)):
            return _with_needed(blocks, number, stub)
    return None


def _remainder(text: str, entry_point: str, stub: str) -> str | None:
    """Of a text in which nothing parses: a body, or a program with an error in it."""
    if stub and (body := _as_body(stub, text.strip("\n"))):
        return body
    if found := _attempts(text, entry_point):
        return text[found.start() :].rstrip("`\n ") + "\n"
    return None


def _attempts(text: str, entry_point: str) -> re.Match[str] | None:
    name = re.escape(entry_point.partition(".")[0])
    words = (
        rf"(?:async[ \t]+)?(?:def|class)[ \t]+{name}\b"
        if name
        else r"(?:def|class|import|from)[ \t]+\w|.{0,200}\binput\("
    )
    return re.search(rf"^[ \t]*(?:{words})", text, re.MULTILINE)


def _defines(tree: ast.Module | None, entry_point: str) -> bool:
    """The name itself, or a class that has it as a method; without a name: a program that reads its input."""
    if tree is None:
        return False
    if not entry_point:
        return bool({"input", "stdin", "open"} & {name_of(node) for node in ast.walk(tree)})
    name = entry_point.partition(".")[0]
    methods = [inner for node in tree.body if isinstance(node, ast.ClassDef) for inner in node.body]
    return any(name in bound(node) for node in [*tree.body, *methods] if not isinstance(node, ast.Import))


def _is_program(tree: ast.Module | None, needs_definition: bool) -> bool:
    if tree is None:
        return False
    if needs_definition:
        return any(isinstance(node, DEFINITIONS) for node in tree.body)
    return any(not isinstance(n, ast.Expr) or isinstance(n.value, ast.Call) for n in tree.body)


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, DEFINITIONS) and node.name == name


def _with_needed(blocks: Sequence[Block], number: int, stub: str) -> str:
    """A block, and before it the definitions that it needs from the others and from the stub, nearest first."""
    chosen, given = blocks[number], block_of(stub, True)
    others = [*reversed(blocks[:number]), *blocks[number + 1 :], given]
    places: dict[str, tuple[int, ast.stmt]] = {}
    for rank, block in enumerate(others):
        for node in reversed(block.tree.body if block.tree else []):
            for name in bound(node):
                places.setdefault(name, (rank, node))
    wanted, taken = missing(chosen.tree) if chosen.tree else set[str](), dict[tuple[int, int], str]()
    seen = set[str]()
    while wanted - seen:
        name = min(wanted - seen)
        seen.add(name)
        if name in places:
            rank, node = places[name]
            taken[-rank, node.lineno] = source_of(others[rank].text, node)
            wanted |= missing(node)
    return "\n".join([*(taken[key] for key in sorted(taken)), chosen.text]) if taken else chosen.text


def _margin(stub: str) -> str:
    """The indentation of a body below a stub."""
    last = stub.rstrip().rpartition("\n")[2]
    own = last[: len(last) - len(last.lstrip())]
    return f"{own}    " if last.endswith(":") else own or "    "


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip())].expandtabs(4)


def _as_body(stub: str, text: str) -> str:
    """The stub with a text as the rest of its function; empty: the text is no body."""
    if not opens(stub) or len(text) > LONGEST:
        return ""
    body = textwrap.indent(textwrap.dedent(text.strip("\n")), _margin(stub))
    code = f"{stub.rstrip()}\n{body}\n"
    tree = parsed(code)
    return code if tree is not None and tree.body and _returns(tree.body[-1]) else ""


def _returns(node: ast.AST) -> bool:
    """Has a function a `return` or `yield` of its own?"""
    open_nodes: list[ast.AST] = [node] if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else []
    while open_nodes:
        for inner in ast.iter_child_nodes(open_nodes.pop()):
            if isinstance(inner, ast.Return | ast.Yield | ast.YieldFrom):
                return True
            if not isinstance(inner, (*DEFINITIONS, ast.Lambda)):
                open_nodes.append(inner)
    return False


def _body(stub: str, text: str, cut: bool) -> str | None:
    """The stub with the text up to the first line at the margin before which all of it parses."""
    if text.startswith("\n") or stub.endswith(('"', "'")):  # nothing can follow a docstring on its line
        stub, text = f"{stub.rstrip()}\n", text.removeprefix("\n")
    head = text.lstrip("\n")
    line = head.partition("\n")[0]
    margin = _margin(stub)
    if stub.endswith("\n") and len(_indentation(line)) < len(margin) and not START.match(head):
        text = margin + head.lstrip(" \t")  # some tokenizers lose the blanks before the first word
    ends = [found.start() for found in _BODY_END.finditer(text[:LONGEST]) if found.start() or stub.endswith("\n")]
    ends = ends[:_TRIES]
    if cut and not ends:
        return None
    for end in [*ends, *([] if cut else [len(text)])]:
        for form in (text[:end], text[:end].expandtabs(4)):
            if parsed(stub + form) is not None:
                return stub + form.rstrip() + "\n"
    return stub + text[: ends[0] if ends else len(text)].rstrip() + "\n"
