"""The command as a user types it: exit code, and exactly what is said."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from toys.logits_files import write_logits
from toys.runs import run_file

from evalrig import fetch
from evalrig.content import content_dir

SUPPORT = Path(__file__).parents[1] / "support"
ENV = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]), "COLUMNS": "200"}


def evalrig(*arguments: str | Path, cwd: Path, **env: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    argv = [sys.executable, "-m", "evalrig", *map(str, arguments)]
    done = subprocess.run(argv, cwd=cwd, env={**ENV, **env}, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = run_file(tmp_path_factory.mktemp("toy"), {"cheap": {"noise": 0.02}})
    own = yaml.safe_load(path.read_text())
    own |= {"engine": {"kind": "refengine"}, "reference": {"weights": "/no/m.gguf"}, "candidates": {"cheap": {}}}
    path.with_name("own.yaml").write_text(yaml.safe_dump(own))
    return path


MISTAKES = {
    "a file that is not there": (["show", "toi.yaml"], "toi.yaml: no such run file; did you mean `toy.yaml`?"),
    "a typo": (["run", "toy.yaml", "suites.piqa.epoch=2"], "toy.yaml: suites.piqa.epoch: no such key; did you mean `epochs`?"),
    "an unknown suite": (["run", "toy.yaml", "suites.piqa.kind=piqua"],
                         "toy.yaml: suites.piqa.kind: no suite `piqua`; did you mean `piqa`?"),
    "an unknown engine": (["run", "toy.yaml", "engine.kind=refengin"],
                          "toy.yaml: engine.kind: no engine `refengin`; did you mean `refengine`?"),
    "a missing model": (["show", "own.yaml"], "own.yaml: reference.weights: no model '/no/m.gguf'; give a GGUF file, "
                        "a safetensors folder, or one of: smollm2-135m-instruct"),
    "a bad override": (["run", "toy.yaml", "seed"], "'seed': not an override; write key=value, for example seed=3"),
    "not a run folder": (["judge", "."], ".: not a run folder (no plan.json); give the folder that `evalrig run` printed"),
    "nothing to resume": (["resume", "none"], "none: not a run folder (no plan.json); give the folder that `evalrig run` "
                          "printed"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(toy: Path, mistake: str) -> None:
    arguments, line = MISTAKES[mistake]
    before = sorted(toy.parent.iterdir())
    assert evalrig(*arguments, cwd=toy.parent) == (2, "", f"evalrig: {line}\n")
    assert sorted(toy.parent.iterdir()) == before, "nothing is made before everything was found"


def test_an_unknown_verb_is_exit_code_2(tmp_path: Path) -> None:
    code, out, said = evalrig("rn", cwd=tmp_path)
    assert (code, out) == (2, "")
    assert "invalid choice: 'rn'" in said


def test_an_output_that_cannot_be_written_is_found_before_an_engine_starts(toy: Path) -> None:
    code, out, said = evalrig("run", toy, f"output={toy}", cwd=toy.parent)
    line = f"evalrig: {toy}: cannot make a run folder: Not a directory; set `output=` to a writable folder\n"
    assert (code, out, said) == (2, "", line)


# ---- verdicts

NOISES = {
    "go": ("0.02", [], 0),
    "nogo": ("1.0", [], 1),
    "inconclusive": ("0.02", ["suites.piqa.samples=12"], 4),
    "invalid": ("0", [], 3),
}


@pytest.mark.parametrize("name", NOISES)
def test_the_exit_code_is_the_verdict_and_judging_repeats_it_byte_for_byte(
    toy: Path, tmp_path: Path, name: str
) -> None:
    noise, more, expected = NOISES[name]
    code, out, said = evalrig(
        "run", toy, f"candidates.cheap.args.noise={noise}", *more, f"output={tmp_path}", cwd=tmp_path
    )
    assert code == expected, said
    [folder] = (tmp_path / "toy").iterdir()
    assert f"run folder: {folder}" in said
    written = (folder / "verdict.json").read_bytes()
    outcome = {0: "GO", 1: "NO-GO", 3: "INVALID", 4: "INCONCLUSIVE"}[expected]
    assert (json.loads(written)["outcome"], json.loads(written)["exit_code"]) == (outcome, expected)
    assert outcome in out
    if name == "go":
        (folder / "verdict.json").unlink()
        code, again, _ = evalrig("judge", folder, cwd=tmp_path)
        assert (code, again) == (expected, out)
        assert (folder / "verdict.json").read_bytes() == written
        (folder / "report.html").unlink()
        code, out, said = evalrig("report", folder, cwd=tmp_path)
        assert (code, out, said) == (0, f"report: {folder / 'report.html'}\n", "")
        assert (folder / "report.html").is_file()
        assert (folder / "verdict.json").read_bytes() == written


def test_a_lost_reference_is_exit_code_3_with_a_verdict_and_the_way_on(toy: Path, tmp_path: Path) -> None:
    arguments = ["run", toy, "+reference.args.die_after=100", f"output={tmp_path}"]
    code, out, _ = evalrig(*arguments, cwd=tmp_path)
    [folder] = (tmp_path / "toy").iterdir()
    assert code == 3
    assert f"evalrig resume {folder}" in out
    assert json.loads((folder / "verdict.json").read_text())["outcome"] == "INVALID"


def test_an_interrupted_run_is_invalid_within_ten_seconds_and_can_go_on(toy: Path, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "evalrig", "run", str(toy), "candidates.cheap.args.noise=0.02",
            "+reference.args.delay=0.05", "+candidates.cheap.args.delay=0.05", f"output={tmp_path}"]  # fmt: skip
    with subprocess.Popen(
        argv, cwd=tmp_path, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        end = time.monotonic() + 60
        while time.monotonic() < end and not list(tmp_path.glob("toy/*/variants/reference/records/*.jsonl")):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        out, _ = process.communicate(timeout=30)
        assert time.monotonic() - began < 10
    [folder] = (tmp_path / "toy").iterdir()
    assert process.returncode == 3
    assert "interrupted by SIGINT before all attempts were made" in out
    assert f"evalrig resume {folder}" in out
    verdict = json.loads((folder / "verdict.json").read_text())
    assert (verdict["outcome"], verdict["exit_code"]) == ("INVALID", 3)


def test_show_starts_nothing_and_makes_nothing(toy: Path) -> None:
    before = sorted(toy.parent.rglob("*"))
    code, out, said = evalrig("show", toy.name, cwd=toy.parent)
    assert (code, said) == (0, "")
    assert "suites" in out
    assert "piqa" in out
    assert sorted(toy.parent.rglob("*")) == before


# ---- the small verbs


def test_list_names_what_there_is(tmp_path: Path) -> None:
    code, out, said = evalrig("list", cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path / "empty"))
    assert (code, said) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("engines: ")
    assert "refengine" in lines[0]
    assert "demo.yaml" in out
    for name in fetch.cards():
        assert any(f" {name}: " in line for line in lines)
    assert "not fetched" in out


def test_init_copies_and_never_overwrites(tmp_path: Path) -> None:
    code, out, said = evalrig("init", "new", cwd=tmp_path)
    assert (code, said) == (0, "")
    assert out == "new/demo.yaml\nnew/evalrig-ci.yaml\nnext: evalrig show new/demo.yaml\n"
    assert (tmp_path / "new" / "demo.yaml").read_bytes() == (content_dir("conf") / "demo.yaml").read_bytes()
    (tmp_path / "new" / "demo.yaml").write_text("mine")
    (tmp_path / "new" / "evalrig-ci.yaml").unlink()
    line = "evalrig: new/demo.yaml: is there already; nothing was copied; give another folder or move it\n"
    assert evalrig("init", "new", cwd=tmp_path) == (2, "", line)
    assert (tmp_path / "new" / "demo.yaml").read_text() == "mine"
    assert not (tmp_path / "new" / "evalrig-ci.yaml").exists()


def test_a_copied_run_file_runs_from_any_folder(tmp_path: Path) -> None:
    absent = fetch.missing([name for name, card in fetch.cards().items() if card.package is not None])
    assert not absent, f"{', '.join(absent)} not in the cache; run `evalrig fetch` before the tests"
    assert evalrig("init", cwd=tmp_path)[0] == 0
    code, out, said = evalrig("show", "demo.yaml", cwd=tmp_path)
    assert (code, said) == (0, "")
    assert "refengine" in out


def test_fetch_from_a_folder_that_is_not_there(tmp_path: Path) -> None:
    code, out, said = evalrig("fetch", "--from", "none", "piqa", cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path / "empty"))
    assert (code, out) == (2, "")
    assert said.count("\n") == 1
    assert said.startswith("evalrig: none: ")
    assert "; " in said


def test_a_reader_that_leaves_early_gets_no_traceback(toy: Path) -> None:
    argv = f"{sys.executable} -m evalrig list | true"
    done = subprocess.run(
        argv, shell=True, cwd=toy.parent, env=ENV, capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in done.stderr


HEAVY = {
    "hydra",
    "omegaconf",
    "yaml",
    "numpy",
    "scipy",
    "httpx",
    "rich",
    "pyarrow",
    "matplotlib",
    "msgspec",
    "asyncio",
    "jinja2",
}


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["--version"]])
def test_asking_for_help_imports_nothing_heavy(tmp_path: Path, arguments: list[str]) -> None:
    code = (
        "import atexit, json, sys; from evalrig.cli import main;"
        "atexit.register(lambda: sys.stderr.write('\\n' + json.dumps(sorted(sys.modules))));"
        f"sys.exit(main({arguments!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=60, check=False
    )
    loaded = set(json.loads(done.stderr.splitlines()[-1]))
    assert done.returncode == 0
    assert not HEAVY & loaded


def test_help_names_the_exit_codes_and_the_next_step(tmp_path: Path) -> None:
    code, out, said = evalrig("--help", cwd=tmp_path)
    assert (code, said) == (0, "")
    assert "0 GO, 1 NO-GO, 2 usage or run file, 3 INVALID or could not run or interrupted, 4 INCONCLUSIVE" in out
    assert "5 rehearsal complete (no verdict)" in out
    for verb in ("run", "rehearse", "doctor", "resume", "judge", "report", "show", "list", "init", "fetch"):
        assert f"\n    {verb} " in out


def test_kld_prints_llama_cpp_s_table_or_one_line(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tokens, logits = rng.integers(0, 50, (4, 64)), rng.normal(0, 2, (4, 64, 50))
    write_logits(tmp_path / "base", tokens, logits)
    write_logits(tmp_path / "candidate", tokens, logits + rng.normal(0, 0.1, logits.shape))
    write_logits(tmp_path / "elsewhere", tokens[:, ::-1], logits)
    code, out, err = evalrig("kld", "base", "candidate", cwd=tmp_path)
    assert (code, err) == (0, "")
    assert "====== KL divergence statistics ======\nMean    KLD:   0.00" in out
    assert out.splitlines()[-1].startswith("Same top p: ")
    for other, words in (("elsewhere", "other tokens than base"), ("nothing", "cannot be read")):
        code, out, err = evalrig("kld", "base", other, cwd=tmp_path)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"evalrig: {other}: {words}")
