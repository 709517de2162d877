"""`evalrig rehearse` as a user types it: no verdict anywhere, and what would stop the real run is found."""

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml
from toys.gguf_model import tiny_model
from toys.runs import run_file

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package
from test_commands import evalrig

VERDICTS = re.compile(r"\bNO-GO\b|(?<!-)\bGO\b|\bINCONCLUSIVE\b")


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run file for GPUs that are not here: two suites of a few samples, stood in for by a random model."""
    folder = tmp_path_factory.mktemp("toy")
    path = run_file(folder, {"cheap": {}}, rehearsal={"weights": str(tiny_model(folder / "tiny.gguf"))})
    own = yaml.safe_load(path.read_text())
    own["engine"] = {"kind": "sglang", "options": {"parallel": {"tp": 8}}}
    own["reference"] = {"weights": "/models/big", "expect": {"weights": "fp8", "kv_cache": "bf16"}}
    own["candidates"] = {"cheap": {"weights": "/models/small", "expect": {"weights": "nvfp4", "kv_cache": "bf16"}}}
    path.write_text(yaml.safe_dump(own, sort_keys=False))
    return path


@pytest.fixture(scope="module")
def complete(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a rehearsal that went well, and what was said last."""
    output = tmp_path_factory.mktemp("complete")
    code, out, said = evalrig("rehearse", toy, f"output={output}", cwd=output)
    assert code == 5, said
    [folder] = (output / "toy-rehearsal").iterdir()
    assert "rehearsal: engine: refengine in place of sglang; not exercised: its options (parallel)\n" in said
    assert "rehearsal: candidates.cheap: weights in int4, the nearest that refengine has to nvfp4\n" in said
    assert "rehearsal: suites.piqa: 4 of 120 samples\n" in said
    return folder, out


def test_a_complete_rehearsal_says_so_and_nothing_else(complete: tuple[Path, str]) -> None:
    folder, out = complete
    lines = out.splitlines()
    assert lines[0] == "REHEARSAL: a stand-in, a few samples, no verdict"
    assert lines[-2:] == [f"report: {folder / 'report.html'}", "REHEARSAL complete: no verdict (exit code 5)"]
    assert not VERDICTS.search(out)


def test_no_verdict_can_be_read_from_any_file(complete: tuple[Path, str]) -> None:
    folder, _ = complete
    verdict = json.loads((folder / "verdict.json").read_text())
    assert (verdict["schema"], verdict["outcome"], verdict["exit_code"]) == (2, "REHEARSAL", 5)
    assert "suites.piqa: 4 of 120 samples" in verdict["rehearsal"]
    checks = verdict["candidates"]["cheap"]["checks"]
    assert [(c["gate"], c["outcome"], c["p_go"], c["p_nogo"]) for c in checks] == [
        (gate, "exercised", 1.0, 1.0) for gate in ("kl_veto", "accuracy", "lead")
    ]
    page = (folder / "report.html").read_text()
    assert "<title>REHEARSAL (no verdict): toy-rehearsal (evalrig)</title>" in page
    assert '<div class="rehearsal"><p>REHEARSAL</p></div>' in page
    assert "<div>signature</div>" not in page
    assert "not measured in a rehearsal: a stand-in gains nothing" in page
    assert (folder / "summary.md").read_text().startswith("## evalrig: REHEARSAL (no verdict) (toy-rehearsal)\n")
    root = ET.fromstring((folder / "junit.xml").read_text())
    assert root.get("name") == "REHEARSAL, no verdict: toy-rehearsal"
    assert {failure.get("type") for failure in root.iter("failure")} == {"REHEARSAL"}
    assert (root.get("failures"), root.get("errors")) == ("3", "0")  # the verdict and two gating checks: never green
    for name in ("verdict.json", "report.html", "summary.md", "junit.xml"):
        text = (folder / name).read_text()
        assert not VERDICTS.search(text), name


def test_judge_report_resume_and_run_keep_saying_it(complete: tuple[Path, str], tmp_path: Path) -> None:
    folder, out = complete
    written = (folder / "verdict.json").read_bytes()
    assert evalrig("judge", folder, cwd=tmp_path)[:2] == (5, out)
    line = f"REHEARSAL, no verdict; report: {folder / 'report.html'}\n"
    assert evalrig("report", folder, cwd=tmp_path) == (5, line, "")
    assert evalrig("resume", folder, cwd=tmp_path)[:2] == (5, out)
    assert (folder / "verdict.json").read_bytes() == written
    assert evalrig("rehearse", folder / "run.yaml", cwd=tmp_path) == (
        2,
        "",
        f"evalrig: {folder / 'run.yaml'}: is the run file of a rehearsal; give the one that it was made from\n",
    )


def test_what_could_not_run_is_exit_code_3_with_the_reason(toy: Path, tmp_path: Path) -> None:
    """A question longer than the context: the real run would lose it too."""
    long = {"question": "why " * 3000, "options": "A. yes\nB. no", "answer": "A. yes"}
    (tmp_path / "long.jsonl").write_text(json.dumps(long) + "\n")
    arguments = ["rehearse", toy, f"suites.piqa.options.path={tmp_path / 'long.jsonl'}", f"output={tmp_path}"]
    code, out, said = evalrig(*arguments, cwd=tmp_path)
    assert code == 3, said
    assert out.startswith("REHEARSAL: a stand-in, a few samples, no verdict\n")
    assert out.endswith("REHEARSAL, not complete: INVALID (exit code 3)\n")
    assert "1 of 1 attempts failed: " in out
    [folder] = (tmp_path / "toy-rehearsal").iterdir()
    page = (folder / "report.html").read_text()
    assert "<title>REHEARSAL: INVALID: toy-rehearsal (evalrig)</title>" in page
    assert '<div class="rehearsal"><p>REHEARSAL</p></div>' in page


MISTAKES = {
    "a typo": (["suites.piqa.epoch=2"], "toy.yaml: suites.piqa.epoch: no such key; did you mean `epochs`?"),
    "data that are not there": (
        ["suites.piqa.options.path=/no/piqa.jsonl"],
        "toy.yaml: suites.piqa.options.path: cannot read '/no/piqa.jsonl': No such file or directory; give a JSONL file",
    ),
    "an engine's own option": (
        ["+engine.options.paralel.tp=8"],
        "toy.yaml: candidates.cheap.args.paralel: no such key; did you mean `parallel`?",
    ),
    "more samples than there are": (
        ["+suites.piqa.samples=400"],
        "toy.yaml: suites.piqa.samples: 400 asked, 120 are there; lower it",
    ),
    "a stand-in that is not there": (
        ["rehearsal.weights=/no/m.gguf"],
        "rehearsal.weights: no model '/no/m.gguf'; give a GGUF file, a safetensors folder, or one of: smollm2-135m-instruct",
    ),
    "a rehearsal of nothing": (["rehearsal.samples=0"], "toy.yaml: rehearsal.samples is 0; 1 is the least"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_the_run_file_is_the_line_that_show_says(toy: Path, mistake: str) -> None:
    overrides, line = MISTAKES[mistake]
    before = sorted(toy.parent.iterdir())
    code, out, said = evalrig("rehearse", toy.name, *overrides, cwd=toy.parent)
    assert (code, out, said.splitlines()[-1]) == (2, "", f"evalrig: {line}")
    if not overrides[0].startswith("rehearsal.weights"):
        assert said == evalrig("show", toy.name, *overrides, cwd=toy.parent)[2]
    assert sorted(toy.parent.iterdir()) == before
