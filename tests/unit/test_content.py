"""What is shipped: the cards say what the files are, and the files are what the cards say."""

import collections
import hashlib
import json
import subprocess
import sys
from typing import Any

import pytest

from evalrig import answer, fetch
from evalrig.content import content_dir


def prompts() -> list[dict[str, Any]]:
    text = fetch.path_of("kl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_the_cards_of_the_demo_are_there_under_their_own_names() -> None:
    known = fetch.cards()
    assert {"kl", "piqa", "smollm2-135m-instruct"} <= set(known)
    assert all(card.name == name for name, card in known.items())


@pytest.mark.parametrize("name", sorted(fetch.cards()))
def test_a_card_says_what_and_whose(name: str) -> None:
    card = fetch.cards()[name]
    said = (card.title, card.owner, card.upstream, card.licence, card.licence_note, *(file.note for file in card.files))
    assert all(text.strip() and "\n" not in text for text in said)
    assert all(file.size > 0 for file in card.files)
    assert len({card.place(file) for file in card.files}) == len(card.files)
    assert card.package is None or card.package.wheel.startswith(
        f"{card.package.name.replace('-', '_')}-{card.package.version}-"
    )


def test_a_shipped_file_is_what_its_card_says() -> None:
    for name, card in fetch.cards().items():
        for file in card.files if card.package is None else ():
            content = fetch.path_of(name, file.name).read_bytes()
            assert (len(content), hashlib.sha256(content).hexdigest()) == (file.size, file.sha256)
            assert content.count(b"\n") == file.rows


def test_no_public_data_is_shipped() -> None:
    shipped = {path.name for path in content_dir("suites").rglob("*") if path.is_file()}
    fetched = {file.name for card in fetch.cards().values() if card.package for file in card.files}
    assert not shipped & fetched


def test_piqa_counts_are_those_of_the_file() -> None:
    assert not fetch.missing(["piqa"]), "piqa is not in the cache; run `evalrig fetch piqa` before the tests"
    [file] = fetch.cards()["piqa"].files
    rows = [json.loads(line) for line in fetch.path_of("piqa").read_text(encoding="utf-8").splitlines()]
    asked = collections.Counter(row["question"] for row in rows)
    assert (len(rows), len(asked)) == (file.rows, file.distinct) == (1500, 1466)
    assert sum(n > 1 for n in asked.values()) == 26
    assert collections.Counter(row["answer"][:3] for row in rows) == {"A. ": 754, "B. ": 746}


def test_the_short_questions_are_what_their_script_writes() -> None:
    path = fetch.path_of("short_answers")
    script = path.with_name("generate.py")
    written = subprocess.run([sys.executable, str(script)], capture_output=True, timeout=60, check=True).stdout
    assert written == path.read_bytes()


def test_every_short_question_is_asked_once_and_its_own_answer_is_right() -> None:
    rows = [json.loads(line) for line in fetch.path_of("short_answers").read_text(encoding="utf-8").splitlines()]
    levels = collections.Counter(tuple(row["tags"]) for row in rows)
    assert len({family for family, _ in levels}) == 10
    assert set(levels.values()) == {10}
    assert len({row["messages"][-1]["content"] for row in rows}) == len(rows) == 300
    for row in rows:
        shown = {message["content"] for message in row["messages"][:-1]}
        assert row["messages"][-1]["content"] not in shown
        given = answer.found(row["answers"][0], row["match"])
        assert given is not None
        assert answer.right(given, row["answers"], row["match"])


def test_prompts_are_48_of_eight_kinds_and_none_twice() -> None:
    kinds = collections.Counter(prompt["kind"] for prompt in prompts())
    assert len(kinds) == 8
    assert set(kinds.values()) == {6}
    assert [prompt["id"] for prompt in prompts()] == [f"kl-{n:03d}" for n in range(1, 49)]
    assert len({json.dumps(prompt["messages"]) for prompt in prompts()}) == 48


@pytest.mark.parametrize("prompt", prompts(), ids=lambda prompt: prompt["id"])
def test_a_prompt_is_a_conversation_that_waits_for_an_answer(prompt: dict[str, Any]) -> None:
    assert set(prompt) == {"id", "kind", "messages"}
    assert all(set(message) == {"role", "content"} and message["content"].strip() for message in prompt["messages"])
    roles = [message["role"] for message in prompt["messages"]]
    turns = roles[1:] if roles[0] == "system" else roles
    assert turns == ["user", "assistant"] * (len(turns) // 2) + ["user"]


def test_prompts_vary_in_length_and_shape() -> None:
    sizes = [sum(len(message["content"]) for message in prompt["messages"]) for prompt in prompts()]
    assert min(sizes) < 80
    assert 400 < max(sizes) < 1000
    roles = [[message["role"] for message in prompt["messages"]] for prompt in prompts()]
    assert sum(each[0] == "system" for each in roles) >= 8
    assert sum("assistant" in each for each in roles) >= 6
