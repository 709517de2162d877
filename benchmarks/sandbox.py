"""HumanEval-size programs a second in the sandbox, through the booth as suites use it: 1, 2 and 4 at once.

python benchmarks/sandbox.py [KIND]
"""

import asyncio
import os
import sys
import time

from evalrig.plugins import find, make
from evalrig.sandbox import Booth, Limits, Sandbox, probe

PROGRAM = '''
from typing import List


def separate_paren_groups(paren_string: str) -> List[str]:
    """Split a text of balanced parentheses into its outermost groups."""
    result, current, depth = [], [], 0
    for letter in paren_string.replace(" ", ""):
        depth += 1 if letter == "(" else -1
        current.append(letter)
        if depth == 0:
            result.append("".join(current))
            current.clear()
    return result


for _ in range(20):
    assert separate_paren_groups("( ) (( )) (( )( ))") == ["()", "(())", "(()())"]
print("passed")
'''
"""Of the size of a HumanEval problem with its tests; our own."""
RUNS = 100
ROUNDS = 3


async def measure(sandbox: Sandbox, at_once: int) -> float:
    """The best of a few rounds, in programs a second: the others measure what else the machine does."""
    booth = Booth(sandbox, at_once)
    best = 0.0
    for _ in range(ROUNDS):
        began = time.perf_counter()
        ran = await asyncio.gather(*(booth.run(PROGRAM, b"", Limits()) for _ in range(RUNS)))
        best = max(best, RUNS / (time.perf_counter() - began))
        if any(one.stdout != b"passed\n" for one in ran):
            raise SystemExit(f"a program failed: {next(one for one in ran if one.stdout != b'passed')}")
    return best


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "bwrap"
    sandbox = make(find("sandboxes", name, Sandbox, "sandbox"), True)
    label = Booth(sandbox, 1, probe(sandbox)).label
    print(f"{label}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; best of {ROUNDS} rounds of {RUNS} programs")
    for at_once in (1, 2, 4):
        print(f"{at_once} at once: {asyncio.run(measure(sandbox, at_once)):.0f} programs/s")


main()
