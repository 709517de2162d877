"""Which engines can be started here, and what they would run on."""

import importlib
import re
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

from evalrig.doctor.sign import Sign, ask, lack, note, ok
from evalrig.programs import VERSION

NO_GPU = "engines for GPUs cannot start here; show, rehearse, judge and report work"
SMI = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]


def refengine() -> Sign:
    """Part of evalrig."""
    return ok("refengine", f"{version('evalrig')}, part of evalrig")


def llama_cpp() -> Sign:
    """The wheel, in the release whose log is known."""
    pinned = next((line for line in requires("evalrig") or () if line.startswith("xllamacpp==")), "")
    wanted = re.split(r"[=;\s]+", pinned)[1] if pinned else ""
    try:
        found = version("xllamacpp")
    except PackageNotFoundError:
        return lack("llama_cpp", "no xllamacpp", "the engine llama_cpp cannot start: pip install 'evalrig[llama_cpp]'")
    if wanted and found != wanted:
        return note(
            "llama_cpp", f"xllamacpp {found}", f"its log is known in {wanted}: pip install 'evalrig[llama_cpp]'"
        )
    return ok("llama_cpp", f"xllamacpp {found}")


def launched(kind: str, interpreter: str) -> Sign:
    """SGLang or vLLM, in the environment of an interpreter; it is asked, and nothing of it is imported."""
    answer = ask([interpreter, "-c", VERSION, kind, f"{kind}-cpu"])
    if answer.code != 0:
        return lack(kind, answer.trouble, f"name the Python that has {kind}: evalrig doctor PYTHON")
    if not answer.out:
        then = (
            f"the engine {kind} cannot start with it: evalrig doctor PYTHON, and engine.options.program in the run file"
        )
        return lack(kind, f"not in the environment of {interpreter}", then)
    return ok(kind, f"{answer.out.splitlines()[-1]} of {interpreter}")


def elsewhere() -> Sign:
    """Engines that are not started."""
    return ok("endpoint", "attaches to a URL, needs nothing here; replay answers from a file")


def gpus() -> Sign:
    """By nvidia-ml-py, or by nvidia-smi."""
    found = _by_nvml()
    if not found:
        answer = ask(SMI)
        found = [", ".join(line.split(", ")) for line in answer.out.splitlines()] if answer.code == 0 else []
    if not found:
        return lack("gpus", "no NVIDIA driver seen", NO_GPU)
    kinds = [f"{found.count(one)} x {one}" for one in dict.fromkeys(found)]
    return ok("gpus", "; ".join(kinds))


def _by_nvml() -> list[str]:
    """Name, memory and driver of each GPU; none without the package or a driver."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return []
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:  # no driver here
        return []
    driver, found = _words(nvml.nvmlSystemGetDriverVersion()), list[str]()
    for index in range(nvml.nvmlDeviceGetCount()):
        one = nvml.nvmlDeviceGetHandleByIndex(index)
        try:
            size = f"{nvml.nvmlDeviceGetMemoryInfo(one).total / 2**20:.0f} MiB"
        except nvml.NVMLError:  # some have no memory of their own
            size = "memory not told"
        found.append(f"{_words(nvml.nvmlDeviceGetName(one))}, {size}, {driver}")
    return found


def _words(said: str | bytes) -> str:
    """Older releases of the package answer in bytes."""
    return said.decode() if isinstance(said, bytes) else said
