"""Where the token streams of the `kl` suite come from: prompts, other suites of the run, conversations, texts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from toys.engine import Toy, tokens
from toys.runs import carry_out, run_file

from evalrig.assemble import assemble
from evalrig.config.load import load_run
from evalrig.errors import UsageError
from evalrig.sources import borrowed, prompts, texts, with_tools, written
from evalrig.suites.kl import Kl, KlOptions
from evalrig.types import FIXED, REFERENCE, Message, Sample, State, Tool, ToolCall


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def said(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


def with_sources(folder: Path, **options: Any) -> Path:
    path = run_file(folder, {"cheap": {"noise": 0.02}})
    tree = yaml.safe_load(path.read_text())
    tree["suites"]["kl"]["options"] |= options
    tree["suites"]["piqa"]["samples"] = 40
    path.write_text(yaml.safe_dump(tree))
    return path


# ---- prompts of other suites


def test_what_another_suite_runs_is_asked_here_too_whichever_comes_first(tmp_path: Path) -> None:
    path = with_sources(tmp_path, suites=["piqa"])
    rig = assemble(load_run(path), path, lambda _: None)
    assert list(rig.samples) == ["kl", "piqa"]
    lent = [sample for sample in rig.samples["kl"] if sample.tags[0] == "piqa"]
    assert {sample.id for sample in lent} == {f"piqa.{sample.id}" for sample in rig.samples["piqa"]}
    assert (len(lent), len(rig.samples["kl"])) == (40, 70)
    assert {sample.prompt for sample in lent} == {sample.prompt for sample in rig.samples["piqa"]}
    assert all(sample.choices == () and sample.target == "" for sample in lent)


def test_a_limit_and_a_seed_hold_for_what_is_borrowed(tmp_path: Path) -> None:
    path = with_sources(tmp_path, suites=["piqa"], prompts="none")
    first, again, other = (
        [s.id for s in assemble(load_run(path, over), path, lambda _: None).samples["kl"]]
        for over in (["+suites.kl.samples=9"], ["+suites.kl.samples=9"], ["+suites.kl.samples=9", "seed=5"])
    )
    assert len(first) == 9
    assert first == again != other
    assert all(name.startswith("piqa.piqa-") for name in first)


@pytest.mark.parametrize("source", ["absent", "kl"])
def test_a_suite_that_lends_nothing_is_named(tmp_path: Path, source: str) -> None:
    path = with_sources(tmp_path, suites=[source])
    with pytest.raises(UsageError) as caught:
        assemble(load_run(path), path, lambda _: None)
    words = f"suites.kl.options.suites: no suite {source!r} here that lends; known: piqa"
    assert str(caught.value) == f"{path}: {words}"


def test_tools_and_calls_are_borrowed_whole_and_broken_arguments_are_named() -> None:
    tool = Tool(name="f", description="", parameters={})
    question = Message(role="user", content="x")
    called = Message(role="assistant", content="", tool_calls=(ToolCall(id="1", name="f", arguments='{"a": 1}'),))
    [row] = borrowed("agents", [Sample(id="a", messages=(question, called, question), tools=(tool,))], "here")
    assert (row.tools, row.messages) == ((tool,), (question, called, question))
    assert with_tools(row)
    broken = replace(called, tool_calls=(ToolCall(id="1", name="f", arguments='{"a"'),))
    with pytest.raises(
        UsageError, match=r"^here: agents, sample 'a': the arguments of a call of 'f' are no JSON object"
    ):
        borrowed("agents", [Sample(id="a", messages=(question, broken, question))], "here")


def test_clusters_and_tags_of_what_is_borrowed_stay_apart_from_those_of_others() -> None:
    [row] = borrowed("quiz", [Sample(id="a", prompt="x", cluster="shared", tags=("number", "easy"))], "here")
    assert (row.id, row.cluster, row.tags) == ("quiz.a", "quiz.shared", ("quiz", "number", "easy"))


# ---- the user's own


def test_a_line_is_a_prompt_a_conversation_or_a_finished_one(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "p.jsonl",
        {"id": "a", "kind": "k", "messages": said(("user", "hi"))},
        {"id": "b", "prompt": "plain"},
        {"id": "c", "kind": "k", "messages": said(("user", "hi"), ("assistant", "hello"))},
        {"id": "d", "messages": said(("user", "hi"), ("assistant", "yes?"), ("user", "go"))},
    )
    assert [sample.tags for sample in prompts(path, "here")] == [("own", "k"), ("own",), ("own", "k", FIXED), ("own",)]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"id": "a"}, "needs either `messages` or `prompt`; give one of them"),
        ({"id": "a", "prompt": "x", "messages": said(("user", "y"))}, "needs either `messages` or `prompt`; give one"),
        ({"id": "a", "messages": said(("assistant", "y"))}, "a finished conversation has a question and an answer"),
        ({"id": "a", "messages": said(("user", "x"), ("assistant", ""))}, "a finished conversation has a question"),
    ],
)
def test_a_line_that_is_none_of_them_is_named(tmp_path: Path, row: Any, why: str) -> None:
    path = lines(tmp_path / "p.jsonl", {"id": "ok", "prompt": "x"}, row)
    with pytest.raises(UsageError) as caught:
        prompts(path, "here")
    assert str(caught.value).startswith(f"here: {path} line 2: {why}")


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TALK = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "42"},
    {"role": "assistant", "content": "it is 42"},
]


def test_every_turn_of_a_conversation_with_tools_is_a_sample_in_one_cluster(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "p.jsonl",
        {"id": "t", "kind": "k", "messages": TALK, "tools": TOOLS},
        {"id": "open", "messages": TALK[:3], "tools": TOOLS},
        {"id": "bare", "messages": TALK[:2]},
    )
    first, second, waits, bare = prompts(path, "here")
    assert [(row.id, len(row.messages), row.cluster) for row in (first, second)] == [("t.1", 2, "t"), ("t.2", 4, "t")]
    assert [row.tags for row in (first, second)] == [("own", "k", FIXED, "step:1"), ("own", "k", FIXED, "step:2")]
    assert first.messages[1].tool_calls == (ToolCall(id="c", name="f", arguments='{"a": 1}'),)
    assert second.messages[2] == Message(role="tool", content="42", tool_call_id="c")
    assert second.tools == (Tool(name="f", description="", parameters={"type": "object"}),)
    assert (waits.id, waits.tags) == ("open", ("own",)), "the reference answers it"
    assert (bare.id, written(bare.messages[-1])) == ("bare.1", 'f({"a": 1})')


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"prompt": "x", "tools": TOOLS}, "a `prompt` has no template that shows tools; give `messages`"),
        ({"messages": TALK, "tools": [{"type": "function"}]}, "Object missing required field `function`"),
        ({"messages": [TALK[0], {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
         "the arguments of a call of 'f' are no JSON object; correct them"),
        ({"messages": [{"role": "assistant", "content": "Hello."}, *TALK], "tools": TOOLS},
         "the assistant's first message answers nothing; begin with the user's"),
    ],
)  # fmt: skip
def test_a_line_with_tools_that_no_template_can_show_is_named(tmp_path: Path, row: Any, why: str) -> None:
    path = lines(tmp_path / "p.jsonl", {"id": "a", **row})
    with pytest.raises(UsageError, match=r"^here: .* line 1: ") as caught:
        prompts(path, "here")
    assert why in str(caught.value)


def test_calls_are_scored_as_the_template_writes_them_and_what_it_drops_is_no_score(tmp_path: Path) -> None:
    own = lines(
        tmp_path / "own.jsonl", {"id": "t", "messages": TALK, "tools": TOOLS}, {"id": "q", "messages": TALK[:1]}
    )
    path = with_sources(tmp_path / "run", prompts=str(own))
    finished = carry_out(path)
    traces = {trace.sample: trace for trace in finished.folder.traces("kl")}
    assert traces["t.1"].prompt_ids == tokens("f;<user>hi\n")
    assert traces["t.1"].token_ids == tokens('<assistant>(f{"a": 1})'), "without the line end after the turn"
    assert traces["t.1"].text == 'f({"a": 1})'
    assert traces["t.2"].prompt_ids == tokens('f;<user>hi\n<assistant>(f{"a": 1})\n<tool>42\n')
    for variant in (REFERENCE, "cheap"):
        assert {r.state for r in finished.folder.records(variant, "kl")} == {State.SCORED}
    unshown = carry_out(path, ["+engine.options.shows_tools=false"])
    for variant in (REFERENCE, "cheap"):
        records = {record.sample: record for record in unshown.folder.records(variant, "kl")}
        assert records["q"].state is State.SCORED
        assert {records[name].state for name in ("t.1", "t.2")} == {State.UNSCORED}
        assert records["t.1"].trajectory.error.startswith("the engine's chat template shows no tools")


def test_an_engine_without_them_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Toy, "capabilities", replace(Toy.capabilities, tool_prompts=False))
    own = lines(tmp_path / "own.jsonl", {"id": "t", "messages": TALK, "tools": TOOLS})
    path = with_sources(tmp_path / "run", prompts=str(own))
    with pytest.raises(
        UsageError, match=r"suites.kl: engine `toys.engine` cannot give token ids of conversations with tools"
    ):
        assemble(load_run(path), path, lambda _: None)


def test_an_empty_text_is_named(tmp_path: Path) -> None:
    path = lines(tmp_path / "t.jsonl", {"id": "a", "text": ""})
    with pytest.raises(UsageError, match=r"line 1: an empty text; leave the line out$"):
        texts(path, "here")


def test_fixed_streams_are_scored_as_they_are_and_marked(tmp_path: Path) -> None:
    own = lines(
        tmp_path / "own.jsonl",
        {"id": "talk", "kind": "k", "messages": said(("user", "hi"), ("assistant", "hello there, who is this?"))},
        {"id": "ask", "messages": said(("user", "hi"))},
    )
    given = lines(tmp_path / "texts.jsonl", {"id": "page", "text": "once upon a time"})
    path = with_sources(tmp_path / "run", prompts=str(own), texts=str(given))
    finished = carry_out(path)
    traces = {trace.sample: trace for trace in finished.folder.traces("kl")}
    assert traces["talk"].prompt_ids == tokens("<user>hi\n")
    assert traces["talk"].token_ids == tokens("hello there, who is this?"), "longer than `tokens`, and not cut"
    assert (traces["page"].prompt_ids, traces["page"].token_ids) == (tokens("o"), tokens("nce upon a time"))
    assert [name for name, trace in traces.items() if trace.finish == FIXED] == [
        sample.id for sample in finished.folder.samples("kl") if FIXED in sample.tags
    ]
    for variant in (REFERENCE, "cheap"):
        records = {record.sample: record for record in finished.folder.records(variant, "kl")}
        assert {record.state for record in records.values()} == {State.SCORED}
        assert records["page"].scores["tokens"] == 15.0
        assert "path_tokens" not in records["page"].scores, "a text has no question to answer"
        assert "path_tokens" in records["talk"].scores
    assert not [f for f in finished.verdict.validity if f.rule == "same tokens" and f.level != "ok"]


def test_a_fixed_stream_has_no_decode_leg(tmp_path: Path) -> None:
    given = lines(tmp_path / "texts.jsonl", {"id": "page", "text": "once upon a time"})
    with pytest.raises(UsageError, match=r"`decode` scores what variants answer, and 'page' is fixed; leave it out"):
        Kl("kl", KlOptions(texts=str(given), leg="decode")).samples()
