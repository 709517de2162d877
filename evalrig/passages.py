"""What of a text is Python: fenced blocks, passages that parse, and the names that they bind and need. Pure; nothing is run.

What is parsed is of bounded size, and every loop over a text moves forward, so a long text costs seconds at most.
"""

import ast
import builtins
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LONGEST = 50_000
"""Characters of a program that is parsed: a longer one is none."""
MOST = 40
"""Blocks, or starts of a passage, that are looked at."""
START = re.compile(r"(?:def|class|async|import|from|@)\b|@")
"""How a line begins from which on a text may be a program."""
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})[^`\n]*\Z|.*?\S[ \t]*(`{3,})[\w+#.-]{1,20}[ \t]*\Z")
_TRIES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A part of a text that may be a program."""

    text: str
    tree: ast.Module | None
    """None: it does not parse."""
    closed: bool
    """Something ended it: a fence, or text that is no program."""


def blocks_in(text: str) -> Iterator[Block]:
    """The last fenced blocks; of one without an end that does not parse, the parts that do."""
    for code, closed in list(_fenced(text))[-MOST:]:
        block = block_of(code, closed)
        yield from (block,) if closed or block.tree is not None else passages_in(code[:LONGEST])


def passages_in(text: str) -> Iterator[Block]:
    """The parts of a text without fences that parse, each from a definition or an import on, as long as can be."""
    lines = textwrap.dedent(text).split("\n")
    starts = [number for number, line in enumerate(lines) if START.match(line)][-MOST:]
    done = 0
    for start in starts:
        if start >= done:
            done, tree = _longest(lines, start)
            if tree is not None:
                ended = any(line.strip() for line in lines[done:])
                yield Block(text="\n".join(lines[start:done]).rstrip() + "\n", tree=tree, closed=ended)


def block_of(text: str, closed: bool) -> Block:
    """A text as a block, in the first of the readings of its indentation that parses."""
    for form in (text, textwrap.dedent(text), text.expandtabs(4), text.expandtabs(8)):
        if (tree := parsed(form)) is not None:
            return Block(text=form, tree=tree, closed=closed)
    return Block(text=text, tree=None, closed=closed)


def parsed(code: str) -> ast.Module | None:
    """The tree of a program; None: it has an error, or is longer or deeper than any program."""
    return _tried(code)[0]


def bound(node: ast.AST) -> set[str]:
    """Names that a statement at the margin gives to the program."""
    if isinstance(node, DEFINITIONS):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return set()


def missing(tree: ast.AST) -> set[str]:
    """Names that are used and bound nowhere in it."""
    used, given = set[str](), set[str](dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else given).add(node.id)
        elif isinstance(node, ast.arg):
            given.add(node.arg)
        else:
            given |= bound(node)
    return used - given


def source_of(text: str, node: ast.stmt) -> str:
    """Whole lines of a statement, decorators included."""
    above = node.decorator_list if isinstance(node, DEFINITIONS) else []
    first = min([node.lineno, *(each.lineno for each in above)])
    return "\n".join(text.split("\n")[first - 1 : node.end_lineno])


def name_of(node: ast.AST) -> str:
    """What a name or an attribute is called; empty for all else."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


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
