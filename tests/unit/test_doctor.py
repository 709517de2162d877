"""What is here and what a lack means, on made-up machines: a PATH of our own, files of our own."""

import os
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evalrig import doctor
from evalrig.doctor import engines, extras, machine
from evalrig.doctor.sign import Mark, Sign, ask, lack, note, ok


def program(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it, and no `pynvml`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    return folder


def test_a_sign_is_one_line_that_a_terminal_cannot_obey() -> None:
    sign = lack("sglang", "said \x1b[2J\nmore", "do this")
    assert str(sign) == "lack  sglang       said ?[2J more; do this"
    assert str(ok("python", "3.11.2")) == "ok    python       3.11.2"


def test_what_is_shown_is_every_sign_and_a_count() -> None:
    signs = [ok("a", "x"), lack("b", "y", "z"), note("c", "w")]
    assert doctor.shown(signs).splitlines() == [*map(str, signs), "", "1 ok, 1 note, 1 lack"]


def test_a_program_is_never_waited_for_longer_than_it_was_given(tmp_path: Path) -> None:
    """Its child holds the pipe open: ending the program alone would leave us reading."""
    slow = program(tmp_path / "bin", "slow", "sleep 60 & sleep 60")
    began = time.monotonic()
    answer = ask([str(slow)], 0.3)
    assert time.monotonic() - began < 10
    assert (answer.code, answer.trouble) == (None, "no answer in 0.3 s")


def test_a_program_that_is_not_there_or_complains(tmp_path: Path) -> None:
    assert ask(["/no/such"]).trouble == "cannot run `/no/such`: No such file or directory"
    assert ask([str(program(tmp_path, "bad", "echo one >&2; echo two >&2; exit 3"))]).trouble == "two"
    assert ask([str(program(tmp_path, "mute", "exit 3"))]).trouble == "ended with code 3 without a word"


# ---- engines


def test_an_engine_is_looked_up_in_the_environment_of_the_chosen_interpreter(tmp_path: Path) -> None:
    site = tmp_path / "site" / "sglang-0.5.23.dist-info"
    site.mkdir(parents=True)
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.23\n")
    fake = program(tmp_path / "bin", "python", f'PYTHONPATH={site.parent} exec {sys.executable} -S "$@"')
    assert engines.launched("sglang", str(fake)) == ok("sglang", f"0.5.23 of {fake}")
    found = engines.launched("vllm", str(fake))
    assert (found.mark, found.found) == (Mark.LACK, f"not in the environment of {fake}")
    assert "evalrig doctor PYTHON" in found.then


def test_an_interpreter_that_is_not_there(bare: Path) -> None:
    found = engines.launched("vllm", "python3")
    assert (found.mark, found.found) == (Mark.LACK, "cannot run `python3`: No such file or directory")


def test_without_a_driver_no_gpu_and_what_still_works(bare: Path) -> None:
    assert engines.gpus() == lack(
        "gpus",
        "no NVIDIA driver seen",
        "engines for GPUs cannot start here; show, rehearse, judge and report work",
    )
    program(bare, "nvidia-smi", "echo 'NVIDIA-SMI has failed' >&2; exit 9")
    assert engines.gpus().mark is Mark.LACK


def test_gpus_by_nvidia_smi(bare: Path) -> None:
    program(bare, "nvidia-smi", "echo 'NVIDIA H200, 143771 MiB, 570.1'; echo 'NVIDIA H200, 143771 MiB, 570.1'")
    assert engines.gpus() == ok("gpus", "2 x NVIDIA H200, 143771 MiB, 570.1")


def test_gpus_by_nvml(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a driver it raises its own error; older releases answer in bytes."""

    class NVMLError(Exception):
        pass

    def absent() -> None:
        raise NVMLError

    nvml: Any = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlSystemGetDriverVersion=lambda: b"570.1",
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda one: SimpleNamespace(total=80 << 30),
        nvmlDeviceGetName=lambda one: "NVIDIA H100",
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert engines.gpus() == ok("gpus", "1 x NVIDIA H100, 81920 MiB, 570.1")
    nvml.nvmlDeviceGetMemoryInfo = lambda one: absent()
    assert engines.gpus() == ok("gpus", "1 x NVIDIA H100, memory not told, 570.1")
    nvml.nvmlInit = absent
    assert engines.gpus().mark is Mark.LACK


def test_the_wheel_of_llama_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(engines, "requires", lambda name: ['xllamacpp==2.0; extra == "llama_cpp"'])
    monkeypatch.setattr(engines, "version", lambda name: "2.0")
    assert engines.llama_cpp() == ok("llama_cpp", "xllamacpp 2.0")
    monkeypatch.setattr(engines, "version", lambda name: "3.1")
    assert engines.llama_cpp().mark is Mark.NOTE
    assert "its log is known in 2.0" in engines.llama_cpp().then
    monkeypatch.setattr(engines, "version", absent)
    assert engines.llama_cpp().mark is Mark.LACK


# ---- sandbox, data, packages


def test_the_sandbox_works_here_and_its_lack_says_what_is_refused(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(extras.sandbox()) == (
        "lack  sandbox      bwrap not found; suites that run programs written by a model are refused here: "
        "install the Debian package bubblewrap, or set `sandbox: landlock` (weaker)"
    )
    program(bare, "bwrap", "echo bubblewrap 0.4.0")
    assert extras.sandbox().found == "bubblewrap 0.4.0 is too old: 0.8 is the least"
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    found = extras.sandbox()
    assert (found.mark, found.then) == (Mark.OK, "")
    assert found.found.startswith("bwrap 0.")
    assert found.found.endswith(", works")


def test_data_that_were_not_fetched_are_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = extras.content()
    assert found.mark is Mark.NOTE
    assert found.found.startswith("fetched: nothing; not fetched: ")
    assert "evalrig fetch" in found.then


def test_a_package_nobody_needs_yet_is_said_to_be_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "version", absent)
    monkeypatch.setattr(extras, "kinds", lambda shelf: ["local"])
    openai, ray = extras.packages()
    assert (openai.mark, ray.then) == (Mark.NOTE, "nothing needs it yet")
    monkeypatch.setattr(extras, "kinds", lambda shelf: ["local", "ray"])
    assert extras.packages()[1].then == "only the runner ray needs it: pip install ray"


# ---- machine


def test_a_package_that_every_run_needs_ends_the_examination(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_required", lambda: ["numpy", "no-such-package"])
    signs = doctor.examine("python3")
    assert [sign.name for sign in doctor.needed(signs)] == ["evalrig"]
    assert signs[-1].then == "no run is possible: pip install no-such-package"


def test_what_evalrig_requires_is_installed_here() -> None:
    assert {"numpy", "hydra-core", "httpx"} <= set(machine._required())
    assert machine.installation().mark is Mark.OK


def test_processor_features_of_x86_and_arm(tmp_path: Path) -> None:
    for line, words in (("flags\t\t: fpu avx2 avx512f", "avx2, avx512f"), ("Features\t: fp asimd sve", "asimd, sve")):
        (tmp_path / "cpuinfo").write_text(f"processor : 0\n{line}\n")
        assert machine.processor(tmp_path / "cpuinfo").found.endswith(f"cores to use, with {words}")
    (tmp_path / "cpuinfo").write_text("flags : fpu\n")
    assert machine.processor(tmp_path / "cpuinfo").mark is Mark.NOTE


def test_memory_counts_a_containers_limit(tmp_path: Path) -> None:
    info, limit = tmp_path / "meminfo", tmp_path / "max"
    info.write_text("MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n")
    assert machine.memory(info, limit) == ok("memory", "8.2 GB free")
    limit.write_text("max\n")
    assert machine.memory(info, limit).mark is Mark.OK
    limit.write_text("500000000\n")
    found = machine.memory(info, limit)
    assert (found.mark, found.found) == (Mark.LACK, "8.2 GB free, at most 0.5 GB in this container")


def test_a_place_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    [runs, _] = machine.disk(tmp_path / "file" / "runs")
    assert (runs.name, runs.mark, runs.then) == ("run folders", Mark.LACK, "name another folder with output=DIR")
    assert machine.disk(tmp_path / "new" / "runs")[0].mark is not Mark.LACK
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10))
    assert machine.disk(tmp_path)[0].mark is Mark.NOTE


def test_fonts_that_plots_measure_with(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.fonts().mark is Mark.OK

    def absent(*arguments: Any, **more: Any) -> str:
        raise ValueError("Failed to find font")

    monkeypatch.setattr("matplotlib.font_manager.findfont", absent)
    assert machine.fonts().mark is Mark.LACK


def test_a_proxys_address_is_a_secret() -> None:
    found = machine.proxies({"HTTPS_PROXY": "http://me:secret@proxy", "no_proxy": "x", "http_proxy": ""})
    assert found == note("proxies", "HTTPS_PROXY set", "ignored towards engines; `evalrig fetch` lets pip use them")


def doctored(tmp_path: Path, *arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "evalrig", "doctor", *arguments]
    whole = {**os.environ, "HTTPS_PROXY": "http://me:secret@proxy", "EVALRIG_KEY": "secret", **env}
    return subprocess.run(argv, cwd=tmp_path, env=whole, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_prints_a_line_a_sign_and_nothing_secret(tmp_path: Path) -> None:
    done = doctored(tmp_path, sys.executable)
    assert (done.returncode, done.stderr) == (0, "")
    *lines, blank, tally = done.stdout.splitlines()
    assert [line[:5].strip() for line in lines] == [line.split()[0] for line in lines]
    assert {line.split()[0] for line in lines} <= {"ok", "note", "lack"}
    assert [line[6:18].strip() for line in lines][:4] == ["python", "evalrig", "processor", "memory"]
    assert (blank, tally.split()[1]) == ("", "ok,")
    assert "secret" not in done.stdout
    assert "\x1b" not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_signs_are_typed_and_frozen() -> None:
    sign = ok("a", "b")
    with pytest.raises(AttributeError):
        sign.name = "c"  # type: ignore[misc]
    assert isinstance(sign, Sign)
