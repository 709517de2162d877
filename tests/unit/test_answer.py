"""Answers found in text and compared: what other harnesses got wrong, by name."""

import time
from typing import get_args

import pytest

from evalrig.answer import Match, found, right, unfit

MATCHES: tuple[Match, ...] = get_args(Match)
RIGHT: list[tuple[Match, str, str]] = [
    # the plain case, and what surrounds it
    ("exact", "Paris", "Paris"),
    ("exact", "  paris.\n", "Paris"),
    ("exact", "**Paris**", "Paris"),
    ("exact", "`Paris`", "Paris"),
    ("exact", '"Paris."', "Paris"),
    ("exact", "- Paris", "Paris"),
    ("exact", "The capital is:\nParis", "Paris"),
    ("exact", "The answer is Paris.", "Paris"),
    ("exact", "The answer is **Paris**.", "Paris"),
    ("exact", "**Answer:** Paris", "Paris"),
    ("exact", "**Final answer**: Paris", "Paris"),
    ("exact", "Answer:\n\nParis", "Paris"),
    ("exact", "The answer is:\n```\nParis\n```\nas asked.", "Paris"),
    ("exact", "```text\nParis\n```\nThis is the capital.", "Paris"),
    ("exact", r"So it is $\boxed{\text{Paris}}$.", "Paris"),
    ("exact", "Paris (the capital since 987)", "Paris"),
    ("exact", "Paris, because it is the capital.", "Paris"),
    ("exact", "Paris. It is the capital of France.", "Paris"),
    ("exact", "Paris\n\nExplanation: the capital of France is Paris, not Lyon.", "Paris"),
    ("exact", "Paris\n**Note:** Lyon is second.", "Paris"),
    ("exact", "2,3 , 7", "2, 3, 7"),
    ("exact", "ﬁn", "fin"),
    ("verbatim", "KX-4821", "KX-4821"),
    ("verbatim", "`KX-4821`.", "KX-4821"),
    ("verbatim", "The answer is KX-4821.", "KX-4821"),
    ("verbatim", "0042", "0042"),
    ("number", "42", "42"),
    ("number", "42.", "42"),
    ("number", "42.0", "42"),
    ("number", "4.2e1", "42"),
    ("number", "1,234,567", "1234567"),
    ("number", "1\u202f234", "1234"),
    ("number", "-7", "-7"),
    ("number", "−7", "-7"),
    ("number", "-$1,234.50", "-1234.5"),
    ("number", "12 x 3 = 36 cm^2", "36"),
    ("number", "12 x 3 = 36 cm2", "36"),
    ("number", "10-3=7", "7"),
    ("number", "36cm", "36"),
    ("number", "40 + 2 = 42\nSo it is 42 km.", "42"),
    ("number", "It is \\(42\\).", "42"),
    ("number", "$42$", "42"),
    ("number", r"\boxed{42}, since 40 + 2 = 42 and 41 is odd", "42"),
    ("number", r"\boxed{41} no, \boxed{42}", "42"),
    ("number", r"$\boxed{42\text{ km}}$", "42"),
    ("number", "The answer is 42, because 40 + 2 = 42 and not 43.", "42"),
    ("number", "42 (40 + 2)", "42"),
    ("number", "42\n\nExplanation: 40 + 2, not 43", "42"),
    ("number", "0.1", ".1"),
    ("choice", "B", "B"),
    ("choice", "(b)", "B"),
    ("choice", "B. carrot", "B"),
    ("choice", "**B)** carrot", "B"),
    ("choice", "The answer is B", "B"),
    ("choice", "Option B: carrot", "B"),
    ("choice", "I first thought A.\nAnswer: B", "B"),
    ("json", '{"name": "Ada", "age": 36}', '{"age": 36, "name": "Ada"}'),
    ("json", '```json\n{"age": 36.0}\n```\nThis is the object.', '{"age": 36}'),
    ("json", 'Not {this}, but {"a": {"b": [1]}} it is.', '{"a": {"b": [1]}}'),
    ("json", 'The answer is {"a": 1}', '{"a": 1}'),
    ("contains", "It is the city of Paris, I think.\nA fine one.", "paris"),
    # "Thinking text inside the extraction": pitfall 16
    ("number", "<think>The answer is 41? 41.</think>42", "42"),
    ("number", "Is the answer: 41?\n</think>\n\n42", "42"),
    ("exact", "<think>\nParis or Lyon\n</think>\n\n**Paris**", "Paris"),
]
WRONG: list[tuple[Match, str, str]] = [
    ("exact", "", "Paris"),
    ("exact", "Lyon", "Paris"),
    ("exact", "Paris or Lyon", "Paris"),
    ("exact", "Paris\nLyon", "Paris"),
    ("exact", "The answer is not Paris", "Paris"),
    ("verbatim", "kx-4821", "KX-4821"),
    ("verbatim", "KX-482", "KX-4821"),
    ("verbatim", "KX-4821-", "KX-4821"),
    ("verbatim", "42", "0042"),
    ("number", "", "42"),
    ("number", "forty-two", "42"),
    ("number", "4.2", "42"),
    ("number", "-42", "42"),
    ("number", "1/42", "42"),
    ("number", "10:42", "42"),
    ("number", "10^42", "42"),
    ("number", "42^2", "42"),
    ("number", "42²", "42"),
    ("number", "3,42", "42"),
    ("number", "1.2.42", "42"),
    ("number", "x42", "42"),
    ("number", "42, or 43", "42"),
    ("number", "42.00000000000000000001", "42"),
    ("choice", "A cat", "A"),
    ("choice", "I do not know", "I"),
    ("choice", "Both A and B", "A"),
    ("choice", "C", "B"),
    ("json", '{"age": 36, "more": 1}', '{"age": 36}'),
    ("json", '{"age": "36"}', '{"age": 36}'),
    ("json", '{"age": 35, "age": 36}', '{"age": 36}'),
    ("json", '{"age": NaN}', '{"age": 36}'),
    ("json", "{'age': 36}", '{"age": 36}'),
    ("json", '[{"age": 36]', '{"age": 37}'),
    ("json", '{"age": 36} {"age": 37}', '{"age": 36}'),
    ("json", '{"a":' * 5000, '{"age": 36}'),
    ("json", f'{{"age": {"9" * 5000}}}', '{"age": 36}'),
    ("json", '{"age": 1e999999999999999999999}', '{"age": 36}'),
    ("json", '__import__("os").getcwd()', '{"age": 36}'),
    ("contains", "Parisian", "Paris"),
    ("contains", "comparison", "Paris"),
    ("contains", "142", "42"),
    # "First ANSWER: instead of last": pitfall 15
    ("number", "Answer: 42. Wait.\nAnswer: 43", "42"),
    ("number", "<think>42", "42"),
    ("number", "42</think>", "42"),
]


def graded(match: Match, text: str, target: str) -> bool:
    given = found(text, match)
    return given is not None and right(given, [target], match)


@pytest.mark.parametrize(("match", "text", "target"), RIGHT)
def test_a_right_answer_survives_what_stands_around_it(match: Match, text: str, target: str) -> None:
    assert graded(match, text, target)


@pytest.mark.parametrize(("match", "text", "target"), WRONG)
def test_what_is_not_the_answer_is_wrong(match: Match, text: str, target: str) -> None:
    assert not graded(match, text, target)


@pytest.mark.parametrize("match", MATCHES)
@pytest.mark.parametrize(
    "text", ["", " \n", "\x00", "```", "{", "}", r"\boxed{", "Answer:", "</think>", "." * 9999, "1" * 9999]
)
def test_no_text_breaks_the_grader(match: Match, text: str) -> None:
    for cut in (False, True):
        given = found(text, match, cut)
        assert given is None or not right(given, ['{"a": 1}' if match == "json" else "7"], match)


@pytest.mark.parametrize(
    "text",
    [
        *("```a\n" * 20_000, r"\boxed{" * 9_000 + "}" * 9_000, '{"a":' * 20_000, "answer " * 20_000, "x (" * 40_000),
        *("\n" * 99_999, "x" + " " * 99_999, "$" * 99_999, "1," * 50_000, r"\text{" * 20_000, "a because " * 20_000),
    ],
    ids=lambda text: text[:8],
)
def test_a_model_that_loops_does_not_stop_the_grader(text: str) -> None:
    began = time.process_time()
    for match in MATCHES:
        if (given := found(text, match)) is not None:
            right(given, ['{"a": 1}' if match == "json" else "7"], match)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("match", "text", "given"),
    [
        ("number", "The answer is 42.\nLet me expl", "42."),
        ("number", r"\boxed{42} and th", "42"),
        ("json", '{"a": 1} is wh', '{"a": 1}'),
        ("exact", "```\nParis\n```\nThis is th", "Paris"),
        ("exact", "Paris\n\nExplanation: it is th", "Paris"),
        ("exact", "Answer:\nParis\nwhich is th", "Paris"),
        ("number", "<think>41</think>The answer is 42\nbec", "42"),
    ],
)
def test_an_answer_complete_before_the_cut_counts(match: Match, text: str, given: str) -> None:
    assert found(text, match, cut=True) == given


@pytest.mark.parametrize(
    ("match", "text"),
    [
        ("number", "42"),
        ("number", "The answer is 4"),
        ("number", "The answer is 42.\nNo, the answer is 4"),
        ("number", "42\n42\n42\n4"),
        ("number", r"\boxed{4"),
        ("number", "<think>The answer is 42.\nBut"),
        ("json", '{"a": 1'),
        ("exact", "```\nParis"),
        ("exact", "Paris\nIt is th"),
        ("exact", "Answer:\nPar"),
        ("contains", "It is Paris"),
        ("exact", ""),
    ],
)
def test_a_cut_answer_is_none(match: Match, text: str) -> None:
    assert found(text, match, cut=True) is None


def test_thoughts_that_were_cut_hold_no_answer_where_the_template_opened_them() -> None:
    thoughts = "The answer is 41.\nBut let me see"
    assert found(thoughts, "number", cut=True) == "41."
    assert found(thoughts, "number", cut=True, thinking=True) is None
    assert found(f"{thoughts}</think>The answer is 42\nfor", "number", cut=True, thinking=True) == "42"
    assert found("42", "number", thinking=True) == "42", "a model may skip the thinking"


@pytest.mark.parametrize(
    ("answers", "match", "why"),
    [
        ([], "exact", "no answer is given"),
        (["a", ""], "exact", "'' is no answer in one line for match `exact`"),
        (["a\nb"], "verbatim", "'a\\nb' is no answer in one line for match `verbatim`"),
        (["many"], "number", "'many' is no answer in one line for match `number`"),
        (["1/2"], "number", "'1/2' is no answer in one line for match `number`"),
        (["carrot"], "choice", "'carrot' is no answer in one line for match `choice`"),
        (["[1]"], "json", "'[1]' is no answer in one line for match `json`"),
        (["..."], "exact", "'...' is no answer in one line for match `exact`"),
    ],
)
def test_a_question_that_nothing_can_answer_is_refused(answers: list[str], match: Match, why: str) -> None:
    assert unfit(answers, match) == why


def test_any_accepted_answer_will_do() -> None:
    assert right("NYC", ["New York", "NYC"], "exact")
    assert not right("Boston", ["New York", "NYC"], "exact")


@pytest.mark.parametrize("match", ["exact", "verbatim", "number", "choice"])
@pytest.mark.parametrize("loop", ['"', "'", "`", "**", "(a) ", ", because it is"])
def test_a_model_that_repeats_itself_is_wrong_and_ends_no_run(loop: str, match: Match) -> None:
    """Taken off layer by layer, marks once reached Python's recursion limit, and asides took 15 seconds."""
    began = time.process_time()
    said = found(loop * 8192, match)
    assert said is not None
    assert not right(said, ["1"], match)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("said", "accepted"), [('{"a": 1}', '{"a": true}'), ('{"a": [0]}', '{"a": [false]}'), ('{"a": {}}', '{"a": []}')]
)
def test_true_is_not_1(said: str, accepted: str) -> None:
    assert not right(said, [accepted], "json")
    assert not right(accepted, [said], "json")
    assert right(said, [said.replace("1", "1.0")], "json")
