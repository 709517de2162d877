"""Writes sample.jsonl and solutions.jsonl: contest problems of this project's own, in LiveCodeBench's release format.

    python suites/livecodebench/generate.py suites/livecodebench

Outputs come from running each problem's reference solution. Every other problem packs its hidden tests as the releases do: base64 of
zlib of a pickle of a JSON text. The bytes of zlib may differ from one machine to another, what they hold does not.
"""

import base64
import contextlib
import io
import json
import pickle
import random
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

SEED = 20261130


class Wrong(NamedTuple):
    """A solution that must not pass, and how it fails."""

    failure: str
    code: str


class Problem(NamedTuple):
    """One problem. `function` empty: a program that reads standard input."""

    id: str
    title: str
    difficulty: str
    date: str
    statement: str
    function: str
    starter: str
    reference: str
    wrong: tuple[Wrong, ...]
    public: tuple[Any, ...]
    hidden: tuple[Any, ...]
    seconds: float = 0.0


def rng(name: str) -> random.Random:
    return random.Random(f"{SEED}/{name}")


def lines(*rows: object) -> str:
    """Standard input of rows; a list is a row of numbers or words."""
    return "".join(f"{' '.join(map(str, row)) if isinstance(row, list | tuple) else row}\n" for row in rows)


def series(name: str, count: int, low: int, high: int) -> list[int]:
    draw = rng(name)
    return [draw.randint(low, high) for _ in range(count)]


# ---- programs that read standard input


def shelf_gaps() -> Problem:
    cases = [series(f"gaps{n}", size, 1, 500) for n, size in enumerate((2, 5, 9, 40, 300))]
    return Problem(
        "shelf-gaps",
        "Shelf gaps",
        "easy",
        "2024-01-14",
        "Parcels stand along a shelf at given distances from its left end, in no order. The gap between two neighbouring "
        "parcels is the difference of their distances. Print the largest gap and the smallest gap.\n\nInput: the first line "
        "holds n (2 <= n <= 300), the second line n whole numbers.\nOutput: the two gaps, separated by a space.\n\n"
        "Example input:\n4\n9 1 4 30\n\nExample output:\n21 3",
        "",
        "",
        "n = int(input())\na = sorted(map(int, input().split()))\n"
        "gaps = [y - x for x, y in zip(a, a[1:])]\nprint(max(gaps), min(gaps))\n",
        (
            Wrong(
                "wrong_answer",
                "n = int(input())\na = list(map(int, input().split()))\n"
                "gaps = [abs(y - x) for x, y in zip(a, a[1:])]\nprint(max(gaps), min(gaps))\n",
            ),
            Wrong(
                "wrong_answer",
                "n = int(input())\na = sorted(map(int, input().split()))\n"
                "gaps = [y - x for x, y in zip(a, a[1:])]\nprint(max(gaps))\nprint(min(gaps))\n",
            ),
        ),
        (lines(4, [9, 1, 4, 30]),),
        tuple(lines(len(case), case) for case in cases),
    )


def stamp_cost() -> Problem:
    cases = [series(f"stamps{n}", size, 0, 2000) for n, size in enumerate((1, 3, 8, 25, 120))]
    return Problem(
        "stamp-cost",
        "Stamp cost",
        "easy",
        "2024-02-03",
        "A letter of up to 20 grams costs 85 cents. Each further 50 grams, or part of them, cost 30 cents more. A letter of "
        "0 grams is none and costs nothing. Print what all letters cost together, in cents.\n\nInput: the first line holds n "
        "(1 <= n <= 120), then n lines with the weight of a letter in whole grams.\nOutput: one whole number.\n\n"
        "Example input:\n3\n20\n21\n71\n\nExample output:\n345",
        "",
        "",
        "def cost(w):\n    if w == 0:\n        return 0\n    return 85 + 30 * ((max(0, w - 20) + 49) // 50)\n\n\n"
        "print(sum(cost(int(input())) for _ in range(int(input()))))\n",
        (
            Wrong(
                "wrong_answer",
                "total = 0\nfor _ in range(int(input())):\n    w = int(input())\n"
                "    total += 85 + 30 * ((max(0, w - 20) + 49) // 50)\nprint(total)\n",
            ),
            Wrong("crash", "n, *w = map(int, input().split())\nprint(85 * n + 30 * (w[0] // 50))\n"),
        ),
        (lines(3, 20, 21, 71), lines(2, 0, 70)),
        tuple(lines(len(case), *case) for case in (*cases, [0, 0, 0])),
    )


def tilted_frame() -> Problem:
    cases = [(w, h) for w, h in zip(series("frame-w", 6, 1, 9), series("frame-h", 6, 1, 9), strict=True)]
    return Problem(
        "tilted-frame",
        "Tilted frame",
        "medium",
        "2024-03-09",
        "Draw a staircase of boxes. With w and h given, print h lines; line i (from 0) begins with i dots and goes on with w "
        "times the sign #.\n\nInput: one line with w and h (1 <= w, h <= 9).\nOutput: the h lines.\n\n"
        "Example input:\n3 2\n\nExample output:\n###\n.###",
        "",
        "",
        "w, h = map(int, input().split())\nfor i in range(h):\n    print('.' * i + '#' * w)\n",
        (
            Wrong(
                "wrong_answer", "w, h = map(int, input().split())\nfor i in range(h):\n    print(' ' * i + '#' * w)\n"
            ),
            Wrong(
                "syntax_error", "w, h = map(int, input().split())\nfor i in range(h)\n    print('.' * i + '#' * w)\n"
            ),
        ),
        (lines([3, 2]),),
        tuple(lines(list(case)) for case in (*cases, (2, 1))),
    )


def mean_speed() -> Problem:
    trips = [
        [(d, t) for d, t in zip(series(f"way{n}", k, 1, 900), series(f"time{n}", k, 1, 12), strict=True)]
        for n, k in enumerate((1, 2, 3, 10, 60))
    ]
    return Problem(
        "mean-speed",
        "Mean speed",
        "medium",
        "2024-03-30",
        "A journey has n legs, each with a length in kilometres and a time in hours. Print the mean speed of the whole journey, "
        "which is not the mean of the speeds of its legs. An error of at most 0.000001 is accepted.\n\nInput: the first line "
        "holds n (1 <= n <= 60), then n lines with two whole numbers, length and time.\nOutput: one number.\n\n"
        "Example input:\n2\n100 1\n100 3\n\nExample output:\n50.0",
        "",
        "",
        "way = hours = 0\nfor _ in range(int(input())):\n    d, t = map(int, input().split())\n    way += d\n    hours += t\n"
        "print(way / hours)\n",
        (
            Wrong(
                "wrong_answer",
                "n = int(input())\nlegs = [tuple(map(int, input().split())) for _ in range(n)]\n"
                "print(sum(d / t for d, t in legs) / n)\n",
            ),
            Wrong(
                "wrong_answer",
                "way = hours = 0\nfor _ in range(int(input())):\n    d, t = map(int, input().split())\n    way += d\n"
                "    hours += t\nprint(round(way / hours, 2))\n",
            ),
            Wrong("wrong_answer", "print('nan')\n"),
        ),
        (lines(2, [100, 1], [100, 3]),),
        tuple(lines(len(trip), *(list(leg) for leg in trip)) for trip in trips),
    )


def bridge_queue() -> Problem:
    sizes = (1, 6, 50, 400, 60000)
    cases = [(size * 7, series(f"bridge{n}", size, 1, 30)) for n, size in enumerate(sizes)]
    return Problem(
        "bridge-queue",
        "Bridge queue",
        "hard",
        "2024-05-18",
        "Lorries stand in a row, each with a weight. A convoy is a run of neighbouring lorries whose weights add up to at most m. "
        "Print how many lorries the longest convoy has; 0 if no lorry may cross.\n\nInput: the first line holds n and m "
        "(1 <= n <= 60000, 1 <= m <= 1000000), the second line n weights (1 to 1000).\nOutput: one whole number.\n\n"
        "Example input:\n5 10\n4 3 3 8 1\n\nExample output:\n3",
        "",
        "",
        "n, m = map(int, input().split())\na = list(map(int, input().split()))\nbest = left = total = 0\n"
        "for right, w in enumerate(a):\n    total += w\n    while total > m:\n        total -= a[left]\n        left += 1\n"
        "    best = max(best, right - left + 1)\nprint(best)\n",
        (
            Wrong(
                "timeout",
                "n, m = map(int, input().split())\na = list(map(int, input().split()))\nbest = 0\nfor i in range(n):\n"
                "    total = 0\n    for j in range(i, n):\n        total += a[j]\n        if total <= m:\n"
                "            best = max(best, j - i + 1)\nprint(best)\n",
            ),
            Wrong(
                "wrong_answer",
                "n, m = map(int, input().split())\nbest = total = 0\nfor w in sorted(map(int, input().split())):\n"
                "    total += w\n    best += total <= m\nprint(best)\n",
            ),
        ),
        (lines([5, 10], [4, 3, 3, 8, 1]), lines([2, 1], [5, 9])),
        tuple(lines([len(case), m], case) for m, case in cases),
        2.0,
    )


def door_codes() -> Problem:
    draw = rng("codes")
    words = ["".join(draw.choice("abc") for _ in range(size)) for size in (1, 2, 5, 9, 30, 200)]
    return Problem(
        "door-codes",
        "Door codes",
        "medium",
        "2024-06-22",
        "A door code is good if no letter stands next to an equal one. By removing letters, make the code good and keep as many "
        "letters as possible. Print the letters that are left, and below how many were removed.\n\nInput: one line with the "
        "code, small letters only (1 to 200).\nOutput: two lines.\n\nExample input:\naabbba\n\nExample output:\naba\n3",
        "",
        "",
        "code = input().strip()\nleft = ''\nfor letter in code:\n    if not left.endswith(letter):\n        left += letter\n"
        "print(left)\nprint(len(code) - len(left))\n",
        (
            Wrong(
                "wrong_answer",
                "code = input().strip()\nleft = ''.join(dict.fromkeys(code))\nprint(left)\nprint(len(code) - len(left))\n",
            ),
            Wrong("wrong_answer", ""),
            Wrong("crash", "code = input()\nprint(code.replace(code[1] * 2, code[1]))\nprint(int(input()))\n"),
        ),
        (lines("aabbba"), lines("a")),
        tuple(lines(word) for word in (*words, "zzzz")),
    )


def far_powers() -> Problem:
    pairs = ((2, 64), (3, 41), (7, 30), (10, 40), (1, 99), (0, 5), (9, 0))
    return Problem(
        "far-powers",
        "Far powers",
        "hard",
        "2024-08-10",
        "Print the sum of all powers of b from the first to the n-th, that is b + b*b + ..., exactly. With n = 0 the sum is 0."
        "\n\nInput: one line with b and n (0 <= b <= 10, 0 <= n <= 99).\nOutput: one whole number, all digits.\n\n"
        "Example input:\n2 3\n\nExample output:\n14",
        "",
        "",
        "b, n = map(int, input().split())\nprint(sum(b**k for k in range(1, n + 1)))\n",
        (
            Wrong(
                "wrong_answer",
                "b, n = map(int, input().split())\nif b == 1:\n    print(n)\nelse:\n    print(int(b * (b**n - 1) / (b - 1)))\n",
            ),
            Wrong("crash", "b, n = map(int, input().split())\nprint(b * (b**n - 1) // (b - 1))\n"),
        ),
        (lines([2, 3]), lines([5, 0])),
        tuple(lines(list(pair)) for pair in pairs),
    )


# ---- functions


def rain_days() -> Problem:
    cases = [series(f"rain{n}", size, 0, 9) for n, size in enumerate((1, 4, 12, 60))]
    return Problem(
        "rain-days",
        "Rain days",
        "easy",
        "2024-01-28",
        "Given how many millimetres of rain fell on each day, return the length of the longest run of days that all had at least "
        "`least` millimetres.\n\nExample: rain = [3, 0, 2, 5, 1], least = 1 gives 3.",
        "longestRun",
        "class Solution:\n    def longestRun(self, rain: List[int], least: int) -> int:\n        ",
        "class Solution:\n    def longestRun(self, rain: List[int], least: int) -> int:\n        best = run = 0\n"
        "        for day in rain:\n            run = run + 1 if day >= least else 0\n            best = max(best, run)\n"
        "        return best\n",
        (
            Wrong(
                "wrong_answer",
                "class Solution:\n    def longestRun(self, rain: List[int], least: int) -> int:\n"
                "        return sum(day >= least for day in rain)\n",
            ),
            Wrong(
                "crash",
                "class Solution:\n    def longestRun(self, rain: List[int], least: int) -> int:\n"
                "        return max(len(run) for run in rain.split())\n",
            ),
        ),
        (([3, 0, 2, 5, 1], 1), ([0, 0], 1)),
        (*((case, 4) for case in cases), ([], 2), ([5, 5, 5], 0)),
    )


def mirror_words() -> Problem:
    return Problem(
        "mirror-words",
        "Mirror words",
        "easy",
        "2024-04-06",
        "Return whether a sentence reads the same from both ends when only its letters count, and capital letters are as good as "
        "small ones. A sentence without letters does.\n\nExample: 'Was it a cat I saw?' gives True.",
        "isMirror",
        "class Solution:\n    def isMirror(self, sentence: str) -> bool:\n        ",
        "class Solution:\n    def isMirror(self, sentence: str) -> bool:\n"
        "        kept = [letter.lower() for letter in sentence if letter.isalpha()]\n        return kept == kept[::-1]\n",
        (
            Wrong(
                "wrong_answer",
                "class Solution:\n    def isMirror(self, sentence: str) -> bool:\n        return sentence == sentence[::-1]\n",
            ),
            Wrong(
                "wrong_answer",
                "class Solution:\n    def isMirror(self, sentence: str) -> bool:\n"
                "        kept = [letter.lower() for letter in sentence if letter.isalpha()]\n"
                "        return int(kept == kept[::-1])\n",
            ),
        ),
        (("Was it a cat I saw?",), ("door",)),
        (("",), ("...",), ("No lemon, no melon",), ("ab",), ("Ab a",), ("aB1b2A",)),
    )


def two_piles() -> Problem:
    cases = [series(f"piles{n}", size, 1, 40) for n, size in enumerate((2, 3, 7, 16))]
    return Problem(
        "two-piles",
        "Two piles",
        "hard",
        "2024-07-13",
        "Split stones into two piles so that the weights of the piles differ as little as possible. Return that difference.\n\n"
        "Example: stones = [8, 3, 5, 4] gives 0. There are at most 40 stones of weight 1 to 40.",
        "leastDifference",
        "class Solution:\n    def leastDifference(self, stones: List[int]) -> int:\n        ",
        "class Solution:\n    def leastDifference(self, stones: List[int]) -> int:\n        sums = {0}\n"
        "        for stone in stones:\n            sums |= {each + stone for each in sums}\n"
        "        return min(abs(sum(stones) - 2 * each) for each in sums)\n",
        (
            Wrong(
                "wrong_answer",
                "class Solution:\n    def leastDifference(self, stones: List[int]) -> int:\n        left = right = 0\n"
                "        for stone in sorted(stones, reverse=True):\n            if left <= right:\n                left += stone\n"
                "            else:\n                right += stone\n        return abs(left - right)\n",
            ),
            Wrong(
                "timeout",
                "class Solution:\n    def leastDifference(self, stones: List[int]) -> int:\n        def go(at, apart):\n"
                "            if at == len(stones):\n                return abs(apart)\n"
                "            return min(go(at + 1, apart + stones[at]), go(at + 1, apart - stones[at]))\n"
                "        return go(0, 0)\n",
            ),
        ),
        (([8, 3, 5, 4],),),
        (*((case,) for case in cases), ([7],), ([10, 9, 8, 7, 6],), (series("piles", 34, 1, 40),)),
        2.0,
    )


def price_list() -> Problem:
    return Problem(
        "price-list",
        "Price list",
        "medium",
        "2024-09-07",
        "Given names and net prices of goods, return a list of [name, gross price] pairs, dearest first and equal prices by name. "
        "The gross price is the net price with `percent` per cent added; do not round it.\n\n"
        "Example: names = ['tea', 'jam'], net = [2.5, 4.0], percent = 10 gives [['jam', 4.4], ['tea', 2.75]].",
        "priceList",
        "class Solution:\n    def priceList(self, names: List[str], net: List[float], percent: int) -> List[List]:\n        ",
        "class Solution:\n    def priceList(self, names: List[str], net: List[float], percent: int) -> List[List]:\n"
        "        rows = sorted(zip(names, net), key=lambda row: (-row[1], row[0]))\n"
        "        return [[name, price * (100 + percent) / 100] for name, price in rows]\n",
        (
            Wrong(
                "wrong_answer",
                "class Solution:\n    def priceList(self, names: List[str], net: List[float], percent: int) -> List[List]:\n"
                "        rows = sorted(zip(names, net), key=lambda row: -row[1])\n"
                "        return [[name, price * (100 + percent) / 100] for name, price in rows]\n",
            ),
            Wrong(
                "wrong_answer",
                "class Solution:\n    def priceList(self, names: List[str], net: List[float], percent: int) -> List[List]:\n"
                "        rows = sorted(zip(names, net), key=lambda row: (-row[1], row[0]))\n"
                "        return [[name, round(price * (100 + percent) / 100)] for name, price in rows]\n",
            ),
        ),
        ((["tea", "jam"], [2.5, 4.0], 10),),
        (
            (["b", "a", "c"], [1.5, 1.5, 0.99], 19),
            (["salt"], [0.37], 7),
            ([], [], 5),
            (["x", "y", "z"], [10.01, 10.02, 10.01], 0),
        ),
    )


def seat_swaps() -> Problem:
    return Problem(
        "seat-swaps",
        "Seat swaps",
        "medium",
        "2024-10-19",
        "Guests sit in a row. A list of swaps [i, j] is carried out in order: the guests on seats i and j (counted from 0) change "
        "places. Return who sits first and who sits last, as a pair.\n\n"
        "Example: guests = ['Ann', 'Bob', 'Cem'], swaps = [[0, 2], [1, 2]] gives ('Cem', 'Bob').",
        "ends",
        "def ends(guests: List[str], swaps: List[List[int]]) -> Tuple[str, str]:\n    ",
        "def ends(guests: List[str], swaps: List[List[int]]) -> Tuple[str, str]:\n    row = list(guests)\n"
        "    for i, j in swaps:\n        row[i], row[j] = row[j], row[i]\n    return row[0], row[-1]\n",
        (
            Wrong(
                "wrong_answer",
                "def ends(guests: List[str], swaps: List[List[int]]) -> Tuple[str, str]:\n    row = list(guests)\n"
                "    for i, j in swaps:\n        row[i] = row[j]\n        row[j] = row[i]\n    return row[0], row[-1]\n",
            ),
            Wrong("crash", "def first_and_last(guests, swaps):\n    return guests[0], guests[-1]\n"),
        ),
        ((["Ann", "Bob", "Cem"], [[0, 2], [1, 2]]),),
        ((["Ann"], []), (["Ann", "Bob"], [[0, 1], [0, 1]]), (["a", "b", "c", "d"], [[0, 3], [1, 2], [0, 1], [3, 2]])),
    )


def tally_votes() -> Problem:
    return Problem(
        "tally-votes",
        "Tally votes",
        "easy",
        "2024-11-23",
        "Return how many votes each name got, as a dictionary. Empty votes do not count.\n\n"
        "Example: votes = ['Ida', '', 'Ida', 'Per'] gives {'Ida': 2, 'Per': 1}.",
        "tally",
        "class Solution:\n    def tally(self, votes: List[str]) -> Dict[str, int]:\n        ",
        "from __future__ import annotations\n\n\nclass Solution:\n    def tally(self, votes: list[str]) -> dict[str, int]:\n"
        "        return dict(Counter(vote for vote in votes if vote))\n",
        (
            Wrong(
                "wrong_answer",
                "class Solution:\n    def tally(self, votes: List[str]) -> Dict[str, int]:\n        return dict(Counter(votes))\n",
            ),
            Wrong(
                "wrong_answer",
                "class Solution:\n    def tally(self, votes: List[str]) -> Dict[str, int]:\n        print({'Ida': 2, 'Per': 1})\n",
            ),
        ),
        ((["Ida", "", "Ida", "Per"],),),
        (([],), (["x"] * 40,), (["b", "a", "b", "", ""],), (["", ""],)),
    )


def loop_walk() -> Problem:
    cases = ["NNES", "NESW", "N" * 30 + "S" * 29, "EEWWEEWWE", "SSSWWN"]
    return Problem(
        "loop-walk",
        "Loop walk",
        "easy",
        "2024-12-14",
        "A walk is a text of steps N, E, S and W of equal length. Print HOME if it ends where it began, else the least number of "
        "steps back.\n\nInput: one line (1 to 100 steps).\nOutput: one line.\n\nExample input:\nNNE\n\nExample output:\n3",
        "",
        "",
        "walk = input().strip()\naway = abs(walk.count('N') - walk.count('S')) + abs(walk.count('E') - walk.count('W'))\n"
        "print(away or 'HOME')\n",
        (
            Wrong(
                "wrong_answer",
                "walk = input().strip()\n"
                "away = abs(walk.count('N') - walk.count('S')) + abs(walk.count('E') - walk.count('W'))\nprint(away)\n",
            ),
            Wrong("wrong_answer", "walk = input().strip()\nprint('Home' if len(walk) % 2 == 0 else len(walk))\n"),
        ),
        (lines("NNE"), lines("NS")),
        tuple(lines(case) for case in cases),
    )


PROBLEMS = (
    *(shelf_gaps, stamp_cost, rain_days, tilted_frame, mean_speed, mirror_words, bridge_queue),
    *(door_codes, two_piles, far_powers, price_list, seat_swaps, tally_votes, loop_walk),
)


def printed(code: str, stdin: str) -> str:
    """What our own reference program prints."""
    before, out = sys.stdin, io.StringIO()
    sys.stdin = io.StringIO(stdin)
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(code, "reference", "exec"), {"__name__": "__main__"})
    finally:
        sys.stdin = before
    return out.getvalue()


def returned(code: str, function: str, arguments: Any) -> object:
    """What our own reference function returns."""
    names: dict[str, Any] = {}
    exec("from collections import Counter\nfrom typing import Dict, List, Tuple\n", names)
    exec(compile(code, "reference", "exec", dont_inherit=True), names)
    owner = names["Solution"]() if "Solution" in names else None
    return (getattr(owner, function) if owner else names[function])(*arguments)


def case(problem: Problem, given: Any) -> dict[str, str]:
    """One test as the releases hold it."""
    if not problem.function:
        return {"input": given, "output": printed(problem.reference, given), "testtype": "stdin"}
    value = returned(problem.reference, problem.function, given)
    return {
        "input": "\n".join(json.dumps(argument) for argument in given),
        "output": json.dumps(value),
        "testtype": "functional",
    }


def packed(text: str) -> str:
    """As the releases pack hidden tests."""
    return base64.b64encode(zlib.compress(pickle.dumps(text, protocol=4), 9)).decode("ascii")


def rows() -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """Lines of sample.jsonl and of solutions.jsonl."""
    for number, make in enumerate(PROBLEMS):
        problem = make()
        hidden = json.dumps([case(problem, given) for given in problem.hidden])
        metadata: dict[str, Any] = {"func_name": problem.function} if problem.function else {}
        if problem.seconds:
            metadata["time_limit"] = problem.seconds
        row = {
            "question_title": problem.title,
            "question_content": problem.statement,
            "platform": "evalrig",
            "question_id": problem.id,
            "contest_id": f"sample-{problem.date[:7]}",
            "contest_date": f"{problem.date}T00:00:00",
            "starter_code": problem.starter,
            "difficulty": problem.difficulty,
            "public_test_cases": json.dumps([case(problem, given) for given in problem.public]),
            "private_test_cases": packed(hidden) if number % 2 else hidden,
            "metadata": json.dumps(metadata),
        }
        wrong = [{"failure": each.failure, "code": each.code} for each in problem.wrong]
        yield row, {"question_id": problem.id, "reference": problem.reference, "wrong": wrong}


def main(folder: Path) -> None:
    """Write both files."""
    pairs = list(rows())
    for name, column in (("sample.jsonl", 0), ("solutions.jsonl", 1)):
        text = "".join(f"{json.dumps(pair[column])}\n" for pair in pairs)
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
