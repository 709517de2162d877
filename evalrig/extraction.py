"""The program in a model's text. Pure; the text is hostile until the sandbox has it.

Nothing here is run. What is parsed is of bounded size, and every loop over a text moves forward, so a long text costs seconds at most.
"""

import ast
import builtins
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

IMPORTS = """\
from typing import *
import bisect, collections, copy, datetime, functools, heapq, itertools, json, math, operator, random, re, statistics, string, sys
from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from functools import cache, cmp_to_key, lru_cache, reduce
from heapq import heapify, heappop, heappush
from itertools import accumulate, chain, combinations, groupby, permutations, product
from math import ceil, comb, factorial, floor, gcd, inf, isqrt, sqrt
"""
"""Stands before every program: a forgotten import of a standard name is not what a suite measures."""
BODY_STOPS = ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint", "\nassert ", "\n```")
"""End the continuation of a function: the next thing at the margin."""
SCRIPT_STOPS = ("\nprint(", "\nassert ", "\nif __name__", '\n"""', "\n```")
"""End a program that is written below a docstring."""
LONGEST = 50_000
"""Characters of a program that is parsed: a longer one is none."""
MOST = 40
"""Blocks, or starts of a passage, that are looked at."""

_LEFTOVER = re.compile(r"<\|(?:im_end|endoftext|end_of_text|eot_id|eom_id|end|user|observation)\|>|</s>(?=\s*\Z)")
_OPENING = re.compile(r"\A\s*<\|(?:im_start|assistant|start_header_id)\|>(?:assistant)?(?:<\|end_header_id\|>)?\s*")
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})[^`\n]*\Z|.*?\S[ \t]*(`{3,})[\w+#.-]{1,20}[ \t]*\Z")
_START = re.compile(r"(?:def|class|async|import|from|@)\b|@")
_BODY_END = re.compile(r"^\S", re.MULTILINE)
_TRIES = 12
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    text: str
    tree: ast.Module | None
    """None: it does not parse."""
    closed: bool
    """Something ended it: a fence, or text that is no program."""


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
    for blocks in (list(_blocks(rest)), list(_passages(rest[-LONGEST:]))):
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
        passages = [block for block in _passages(text[:LONGEST]) if block.closed or not cut]
        first = next((n for n, block in enumerate(passages) if _defines(block.tree, entry_point)), len(passages))
        found = _chosen(passages[: first + 1], entry_point, "")
        return found if found is not None or cut else _remainder(text, entry_point, "")
    if _START.match(text.lstrip("\n")) or text.lstrip().startswith("```"):
        whole = code_in(text, entry_point, cut, stub=stub)
        if whole is not None and _defines(_parsed(whole), entry_point):
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
    """A program with the standard imports before it."""
    lines = code.split("\n")
    future = [line for line in lines if line.startswith("from __future__ import ")]  # must stay first
    rest = [line for line in lines if not line.startswith("from __future__ import ")]
    return "\n".join([*future, IMPORTS, *rest])


def beside(stub: str, entry_point: str) -> str:
    """What a stub defines beside its entry point, as source."""
    tree = _parsed(stub) or _parsed(f"{stub.rstrip()}\n{_margin(stub)}pass\n")
    nodes = [node for node in tree.body if not _is(node, entry_point)] if tree else []
    return "\n".join(_source(stub, node) for node in nodes)


def called(tests: str, solution: str) -> list[str]:
    """The names that a solution defines and tests use, in the tests' order."""
    tree, ours = _parsed(tests), _parsed(solution)
    defined = {name for node in ours.body for name in _bound(node)} if ours else set[str]()
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


def _blocks(text: str) -> Iterator[_Block]:
    """The last fenced blocks; of one without an end that does not parse, the parts that do."""
    for code, closed in list(_fenced(text))[-MOST:]:
        block = _block(code, closed)
        yield from (block,) if closed or block.tree is not None else _passages(code[:LONGEST])


def _fenced(text: str) -> Iterator[tuple[str, bool]]:
    """What stands between fences, line by line, and whether its fence was closed: the last one's may be forgotten."""
    fence, margin, lines = "", 0, list[str]()
    for line in text.split("\n"):
        mark = _FENCE.match(line) if "```" in line[:300] or "~~~" in line[:300] else None
        if mark and (not fence or (mark[1] == fence and line.strip() != fence)):
            if fence:
                yield _shifted(lines, margin), True  # its own fence was forgotten
            fence, lines = mark[1] or mark[2], []
            margin = len(line) - len(line.lstrip())
        elif not fence:
            continue
        elif (bare := line.strip()).startswith(fence) and not bare.strip(fence[0]):
            yield _shifted(lines, margin), True
            fence = ""
        elif line.rstrip().endswith(fence) and fence not in line.strip()[:-3]:
            yield _shifted([*lines, line.rstrip()[: -len(fence)]], margin), True
            fence = ""
        else:
            lines.append(line)
    if fence:
        yield _shifted(lines, margin), False


def _shifted(lines: Sequence[str], margin: int) -> str:
    """Without the indentation of a fence in a list, without doctest prompts, dedented where all of it is indented."""
    lines = [line[margin:] if not line[:margin].strip() else line for line in lines]
    first = next((line.lstrip() for line in lines if line.strip()), "")
    if first.startswith(">>>"):
        lines = [line.lstrip()[4:] for line in lines if line.lstrip()[:3] in (">>>", "...")]
    return "\n".join(lines)


def _block(text: str, closed: bool) -> _Block:
    for form in (text, textwrap.dedent(text), text.expandtabs(4), text.expandtabs(8)):
        if (tree := _parsed(form)) is not None:
            return _Block(text=form, tree=tree, closed=closed)
    return _Block(text=text, tree=None, closed=closed)


def _passages(text: str) -> Iterator[_Block]:
    """The parts of a text without fences that parse, each from a definition or an import on, as long as can be."""
    lines = textwrap.dedent(text).split("\n")
    starts = [number for number, line in enumerate(lines) if _START.match(line)][-MOST:]
    done = 0
    for start in starts:
        if start >= done:
            done, tree = _longest(lines, start)
            if tree is not None:
                ended = any(line.strip() for line in lines[done:])
                yield _Block(text="\n".join(lines[start:done]).rstrip() + "\n", tree=tree, closed=ended)


def _longest(lines: Sequence[str], start: int) -> tuple[int, ast.Module | None]:
    """Where the longest passage from a line on ends, and its tree; None: no line of it parses."""
    end = len(lines)
    for _ in range(_TRIES):
        tree, wrong = _tried("\n".join(lines[start:end]))
        if tree is not None:
            return start + _last_code(tree), tree
        end = start + min(wrong or 1, end - start) - 1
        while end > start and not lines[end][:1].strip():
            end -= 1  # a statement is broken as a whole
        if end <= start:
            break
    return start + 1, None


def _last_code(tree: ast.Module) -> int:
    """The last line before one that does nothing: a word of prose can parse."""
    for number, node in enumerate(tree.body):
        if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Call | ast.Await | ast.Constant):
            tree.body = tree.body[:number]
            break
    return (tree.body[-1].end_lineno or 1) if tree.body else 0


def _tried(code: str) -> tuple[ast.Module | None, int]:
    """The tree, or the line from which on it cannot be read."""
    if len(code) > LONGEST:
        return None, code.count("\n", 0, LONGEST) + 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes in strings
            return ast.parse(code), 0
    except SyntaxError as error:
        return None, error.lineno or 1
    except (ValueError, RecursionError, MemoryError):  # zero bytes, and what is nested deeper than any program
        return None, 1


def _parsed(code: str) -> ast.Module | None:
    return _tried(code)[0]


def _chosen(blocks: Sequence[_Block], entry_point: str, stub: str) -> str | None:
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
        return bool({"input", "stdin", "open"} & {_name(node) for node in ast.walk(tree)})
    name = entry_point.partition(".")[0]
    methods = [inner for node in tree.body if isinstance(node, ast.ClassDef) for inner in node.body]
    return any(name in _bound(node) for node in [*tree.body, *methods] if not isinstance(node, ast.Import))


def _is_program(tree: ast.Module | None, needs_definition: bool) -> bool:
    if tree is None:
        return False
    if needs_definition:
        return any(isinstance(node, _DEFINITIONS) for node in tree.body)
    return any(not isinstance(n, ast.Expr) or isinstance(n.value, ast.Call) for n in tree.body)


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _bound(node: ast.AST) -> set[str]:
    """Names that a statement at the margin gives to the program."""
    if isinstance(node, _DEFINITIONS):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return set()


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, _DEFINITIONS) and node.name == name


def _source(text: str, node: ast.AST) -> str:
    """Whole lines of a statement, decorators included."""
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])  # type: ignore[attr-defined]
    return "\n".join(text.split("\n")[first - 1 : node.end_lineno])  # type: ignore[attr-defined]


def _missing(tree: ast.AST) -> set[str]:
    """Names that are used and bound nowhere in it."""
    used, bound = set[str](), set[str](dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        else:
            bound |= _bound(node)
    return used - bound


def _with_needed(blocks: Sequence[_Block], number: int, stub: str) -> str:
    """A block, and before it the definitions that it needs from the others and from the stub, nearest first."""
    chosen, given = blocks[number], _block(stub, True)
    others = [*reversed(blocks[:number]), *blocks[number + 1 :], given]
    places: dict[str, tuple[int, ast.stmt]] = {}
    for rank, block in enumerate(others):
        for node in reversed(block.tree.body if block.tree else []):
            for name in _bound(node):
                places.setdefault(name, (rank, node))
    wanted, taken = _missing(chosen.tree) if chosen.tree else set[str](), dict[tuple[int, int], str]()
    seen = set[str]()
    while wanted - seen:
        name = min(wanted - seen)
        seen.add(name)
        if name in places:
            rank, node = places[name]
            taken[-rank, node.lineno] = _source(others[rank].text, node)
            wanted |= _missing(node)
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
    tree = _parsed(code)
    return code if tree is not None and tree.body and _returns(tree.body[-1]) else ""


def _returns(node: ast.AST) -> bool:
    """Has a function a `return` or `yield` of its own?"""
    open_nodes = [node] if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else []
    while open_nodes:
        for inner in ast.iter_child_nodes(open_nodes.pop()):
            if isinstance(inner, ast.Return | ast.Yield | ast.YieldFrom):
                return True
            if not isinstance(inner, (*_DEFINITIONS, ast.Lambda)):
                open_nodes.append(inner)
    return False


def _body(stub: str, text: str, cut: bool) -> str | None:
    """The stub with the text up to the first line at the margin before which all of it parses."""
    head = text.lstrip("\n")
    line = head.partition("\n")[0]
    margin = _margin(stub)
    if stub.endswith("\n") and len(_indentation(line)) < len(margin) and not _START.match(head):
        text = margin + head.lstrip(" \t")  # some tokenizers lose the blanks before the first word
    ends = [found.start() for found in _BODY_END.finditer(text[:LONGEST]) if found.start() or stub.endswith("\n")]
    ends = ends[:_TRIES]
    if cut and not ends:
        return None
    for end in [*ends, *([] if cut else [len(text)])]:
        for form in (text[:end], text[:end].expandtabs(4)):
            if _parsed(stub + form) is not None:
                return stub + form.rstrip() + "\n"
    return stub + text[: ends[0] if ends else len(text)].rstrip() + "\n"
