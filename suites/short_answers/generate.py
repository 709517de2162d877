"""Writes questions.jsonl: 300 short questions in ten families of three levels. Run it and compare: the seed is fixed.

    python suites/short_answers/generate.py > suites/short_answers/questions.jsonl

Each level of a family draws twelve questions; the first two are shown, with their answers, before each of the other ten.
"""

import json
import random
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

SEED = 20261129
SHOWN, ASKED = 2, 10


class Question(NamedTuple):
    """One question, its answer as a model should write it, and how it is compared."""

    text: str
    answer: str
    match: str


Draw = Callable[[random.Random], Question]
NAMES = (
    "Ada",
    "Ben",
    "Carla",
    "Dan",
    "Eva",
    "Finn",
    "Gita",
    "Hugo",
    "Iris",
    "Jon",
    "Kim",
    "Leo",
    "Mia",
    "Nils",
    "Olga",
)
WORDS = (
    *("apple", "bread", "chair", "dream", "eagle", "flame", "grape", "house", "island", "jungle", "kitchen", "lemon"),
    *(
        "marble",
        "night",
        "ocean",
        "paper",
        "queen",
        "river",
        "silver",
        "table",
        "umbrella",
        "valley",
        "window",
        "yellow",
    ),
    *(
        "zebra",
        "basket",
        "candle",
        "dragon",
        "engine",
        "forest",
        "garden",
        "hammer",
        "iron",
        "jacket",
        "ladder",
        "mirror",
    ),
)
SIMPLE = tuple(word for word in WORDS if word[-1] not in "hsxy" and word not in ("bread", "iron", "silver", "yellow"))
ANIMALS = ("cat", "dog", "owl", "fox", "cow", "hen")


def _number(text: str, answer: int) -> Question:
    return Question(f"{text} Answer with the number only.", str(answer), "number")


def _line(text: str, answer: str) -> Question:
    return Question(text, answer, "exact")


def _same(text: str, answer: str) -> Question:
    return Question(text, answer, "verbatim")


def _digits(rng: random.Random, count: int, alphabet: str = "0123456789") -> str:
    return "".join(rng.choice(alphabet) for _ in range(count))


# ---- arithmetic


def one_digit(rng: random.Random) -> Question:
    a, b = rng.randint(1, 7), rng.randint(1, 2)
    return _number(f"What is {a} + {b}?", a + b)


def two_digits(rng: random.Random) -> Question:
    a, b = rng.randint(11, 59), rng.randint(11, 39)
    return _number(f"What is {a} + {b}?", a + b) if rng.random() < 0.6 else _number(f"What is {a + b} - {b}?", a)


def three_digits(rng: random.Random) -> Question:
    if rng.random() < 0.5:
        a, b = rng.randint(101, 899), rng.randint(101, 899)
        return _number(f"What is {a} + {b}?", a + b)
    a, b = rng.randint(11, 49), rng.randint(3, 9)
    return _number(f"What is {a} * {b}?", a * b)


# ---- copying


def short_id(rng: random.Random) -> Question:
    code = f"{_digits(rng, 2, 'BCDFGHJKLMNPQRSTVWXZ')}-{_digits(rng, 4)}"
    return _same(f"Repeat this order number exactly: {code}", code)


def long_digits(rng: random.Random) -> Question:
    code = _digits(rng, 14)
    return _same(f"Repeat these digits exactly: {code}", code)


def hash_digits(rng: random.Random) -> Question:
    code = _digits(rng, 32, "0123456789abcdef")
    return _same(f"Repeat this hash exactly: {code}", code)


# ---- counting


def count_words(rng: random.Random) -> Question:
    chosen = rng.sample(WORDS, rng.randint(2, 5))
    return _number(f"How many words are in this list: {', '.join(chosen)}?", len(chosen))


def count_animals(rng: random.Random) -> Question:
    wanted, *others = rng.sample(ANIMALS, 3)
    times = rng.randint(1, 4)
    chosen = [wanted] * times + [rng.choice(others) for _ in range(rng.randint(1, 3))]
    rng.shuffle(chosen)
    return _number(f"How many times does {wanted} occur in: {', '.join(chosen)}?", times)


def count_letters(rng: random.Random) -> Question:
    word = rng.choice(WORDS)
    return _number(f'How many letters has the word "{word}"?', len(word))


# ---- facts

CAPITALS = (
    *(("France", "Paris"), ("Italy", "Rome"), ("Japan", "Tokyo"), ("Spain", "Madrid"), ("Egypt", "Cairo")),
    *(("Greece", "Athens"), ("Norway", "Oslo"), ("Peru", "Lima"), ("Kenya", "Nairobi"), ("Cuba", "Havana")),
    *(("Poland", "Warsaw"), ("Austria", "Vienna"), ("Portugal", "Lisbon"), ("Hungary", "Budapest")),
)
EVERYDAY = (
    *(("Which animal barks?", "dog"), ("Which colour is a ripe banana?", "yellow"), ("What do bees make?", "honey")),
    *(("Which season comes after winter?", "spring"), ("What do cows give us to drink?", "milk")),
    *(("Which planet do we live on?", "Earth"), ("What is frozen water called?", "ice")),
    *(("Which day comes after Monday?", "Tuesday"), ("What is the opposite of hot?", "cold")),
    *(("Which month comes after March?", "April"), ("Which colour is fresh snow?", "white")),
    *(("What is the opposite of left?", "right"), ("Which animal gives us wool?", "sheep")),
)
PICKS = (
    ("Which of these is a metal?", "copper", "cotton", "paper"),
    ("Which of these can fly?", "sparrow", "salmon", "horse"),
    ("Which of these is a vegetable?", "carrot", "granite", "hammer"),
    ("Which of these is a planet?", "Saturn", "Sahara", "Sicily"),
    ("Which of these is a musical instrument?", "violin", "pillow", "bucket"),
    ("Which of these lives in the sea?", "dolphin", "camel", "pigeon"),
    ("Which of these is a gas?", "oxygen", "gold", "salt"),
    ("Which of these is the largest?", "whale", "mouse", "rabbit"),
    ("Which of these tells the time?", "clock", "spoon", "carpet"),
    ("Which of these is an even number?", "eight", "seven", "five"),
    ("Which of these is worn on the feet?", "shoe", "glove", "scarf"),
    ("Which of these grows on trees?", "cherry", "potato", "brick"),
    ("Which of these is a continent?", "Africa", "Berlin", "Pacific"),
)


def capital(rng: random.Random) -> Question:
    country, city = rng.choice(CAPITALS)
    return _line(f"What is the capital of {country}? Answer in one word.", city)


def everyday(rng: random.Random) -> Question:
    text, answer = rng.choice(EVERYDAY)
    return _line(f"{text} Answer in one word.", answer)


def pick(rng: random.Random) -> Question:
    text, right, *wrong = rng.choice(PICKS)
    choices = [right, *wrong]
    rng.shuffle(choices)
    lines = "\n".join(f"{letter}. {choice}" for letter, choice in zip("ABC", choices, strict=True))
    return Question(f"{text}\n{lines}\nAnswer with the letter.", "ABC"[choices.index(right)], "choice")


# ---- format


def upper_case(rng: random.Random) -> Question:
    word = rng.choice(WORDS)
    return _same(f"Write this word in upper case: {word}", word.upper())


def comma_list(rng: random.Random) -> Question:
    chosen = rng.sample(WORDS, 3)
    return _line(f"Write these as a list with commas: {' and '.join(chosen)}", ", ".join(chosen))


def json_object(rng: random.Random) -> Question:
    name, age = rng.choice(NAMES), rng.randint(18, 79)
    text = f'Write as JSON with the keys "name" and "age": {name} is {age} years old.'
    return Question(text, json.dumps({"name": name, "age": age}), "json")


# ---- inference


def older(rng: random.Random) -> Question:
    a, b = rng.sample(NAMES, 2)
    sign, word = rng.choice((("older", "older"), ("taller", "taller"), ("faster", "faster")))
    return _line(f"{a} is {sign} than {b}. Who is {word}? Answer with the name.", a)


def chain(rng: random.Random) -> Question:
    a, b, c = rng.sample(NAMES, 3)
    if rng.random() < 0.5:
        return _line(f"{a} is older than {b}. {b} is older than {c}. Who is the youngest? Answer with the name.", c)
    return _line(f"{b} is older than {c}. {a} is older than {b}. Who is the oldest? Answer with the name.", a)


def has_what(rng: random.Random) -> Question:
    a, b, c = rng.sample(NAMES, 3)
    x, y, z = rng.sample(WORDS[:24], 3)
    who, what = rng.choice(((a, y), (b, z), (c, x)))
    text = f"{a} has the {x}, {b} has the {y}, {c} has the {z}. Each gives it away: {a} to {c}, {b} to {a}, {c} to {b}."
    return _line(f"{text} What does {who} have now? Answer in one word.", what)


# ---- sequence


def steps(rng: random.Random) -> Question:
    start, step = rng.randint(1, 30), rng.choice((1, 10))
    shown = [start + step * i for i in range(4)]
    return _number(f"Which number comes next: {', '.join(map(str, shown))}?", start + step * 4)


def downwards(rng: random.Random) -> Question:
    start, step = rng.randint(40, 90), rng.choice((2, 3, 4, 6))
    shown = [start - step * i for i in range(4)]
    return _number(f"Which number comes next: {', '.join(map(str, shown))}?", start - step * 4)


def doubling(rng: random.Random) -> Question:
    start, factor = rng.randint(1, 9), rng.choice((2, 3))
    shown = [start * factor**i for i in range(4)]
    return _number(f"Which number comes next: {', '.join(map(str, shown))}?", start * factor**4)


# ---- units


def tens(rng: random.Random) -> Question:
    big, small, size = rng.choice((("cm", "mm", 10), ("m", "cm", 100), ("km", "m", 1000), ("kg", "g", 1000)))
    count = rng.randint(2, 9)
    return _number(f"How many {small} are {count} {big}?", count * size)


def times(rng: random.Random) -> Question:
    big, small, size = rng.choice((("hours", "minutes", 60), ("weeks", "days", 7), ("days", "hours", 24)))
    count = rng.randint(2, 6)
    return _number(f"How many {small} are {count} {big}?", count * size)


def back(rng: random.Random) -> Question:
    big, small, size = rng.choice((("hours", "minutes", 60), ("weeks", "days", 7), ("km", "m", 1000), ("m", "cm", 100)))
    count = rng.randint(2, 9)
    return _number(f"How many {big} are {count * size} {small}?", count)


# ---- sorting


def two_numbers(rng: random.Random) -> Question:
    chosen = rng.sample(range(1, 10), 2)
    return _line(f"Sort from small to large: {', '.join(map(str, chosen))}", ", ".join(map(str, sorted(chosen))))


def five_numbers(rng: random.Random) -> Question:
    chosen = rng.sample(range(10, 99), 5)
    return _line(f"Sort from small to large: {', '.join(map(str, chosen))}", ", ".join(map(str, sorted(chosen))))


def four_words(rng: random.Random) -> Question:
    chosen = rng.sample(WORDS, 4)
    return _line(f"Sort by the alphabet: {', '.join(chosen)}", ", ".join(sorted(chosen)))


# ---- words


def plural(rng: random.Random) -> Question:
    word = rng.choice(SIMPLE)
    return _line(f"Write the plural of this word: {word}", f"{word}s")


def first_letter(rng: random.Random) -> Question:
    word = rng.choice(WORDS)
    place = rng.choice(("first", "last"))
    return _line(f'What is the {place} letter of "{word}"?', word[0 if place == "first" else -1])


def reverse(rng: random.Random) -> Question:
    word = rng.choice([word for word in WORDS if len(word) == 5])
    return _line(f'Write the word "{word}" backwards.', word[::-1])


FAMILIES: dict[str, tuple[Draw, Draw, Draw]] = {
    "arithmetic": (one_digit, two_digits, three_digits),
    "copying": (short_id, long_digits, hash_digits),
    "counting": (count_words, count_animals, count_letters),
    "facts": (everyday, capital, pick),
    "format": (upper_case, comma_list, json_object),
    "inference": (older, chain, has_what),
    "sequence": (steps, downwards, doubling),
    "units": (tens, times, back),
    "sorting": (two_numbers, five_numbers, four_words),
    "words": (plural, first_letter, reverse),
}
"""Family -> how to draw its easy, medium and hard questions."""


def rows() -> Iterator[str]:
    """Lines of questions.jsonl."""
    for family, levels in FAMILIES.items():
        for level, draw in zip(("easy", "medium", "hard"), levels, strict=True):
            rng = random.Random(f"{SEED}/{family}/{level}")
            drawn: dict[str, Question] = {}
            while len(drawn) < SHOWN + ASKED:
                question = draw(rng)
                drawn.setdefault(question.text.partition("\n")[0], question)  # other choices make no other question
            shown, asked = list(drawn.values())[:SHOWN], list(drawn.values())[SHOWN:]
            turns = [
                {"role": role, "content": text}
                for question in shown
                for role, text in (("user", question.text), ("assistant", question.answer))
            ]
            for number, question in enumerate(asked):
                row = {
                    "id": f"{family}-{level}-{number}",
                    "messages": [*turns, {"role": "user", "content": question.text}],
                    "answers": [question.answer],
                    "match": question.match,
                    "tags": [family, level],
                }
                yield json.dumps(row, ensure_ascii=False)


if __name__ == "__main__":
    sys.stdout.write("".join(f"{row}\n" for row in rows()))
