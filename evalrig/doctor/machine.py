"""The machine and the installation: what every run needs."""

import os
import re
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from evalrig.content import cache_dir, content_dir
from evalrig.doctor.sign import Sign, lack, note, ok

FEATURES = ("avx2", "avx512f", "amx_tile", "asimd", "sve")
"""What makes matrix products fast, as the kernel calls it on x86 and ARM."""
ENGINE_BYTES = 0.9e9
"""Memory of one refengine process with its default model (`docs/doctor.md`)."""
FREE_BYTES = 2e9
PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def python() -> Sign:
    """The interpreter that runs this."""
    return ok("python", f"{sys.version.split()[0]} on {sys.platform}")


def installation() -> Sign:
    """evalrig itself: code, shipped content, and the packages it needs."""
    own = version("evalrig")
    if not any(content_dir("conf").glob("*.yaml")) or not content_dir("suites").is_dir():
        return lack("evalrig", f"{own} without its run files and suites", "no run is possible: install it anew", True)
    absent = [name for name in _required() if not _installed(name)]
    if absent:
        words = f"{own} without {', '.join(absent)}"
        return lack("evalrig", words, f"no run is possible: pip install {' '.join(absent)}", True)
    return ok("evalrig", f"{own} with all it needs")


def _required() -> list[str]:
    """Names of the packages that evalrig asks for outside its extras."""
    lines = (line for line in requires("evalrig") or () if "extra ==" not in line)
    return [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in lines]


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> Sign:
    """Cores that this process may use, and the features that refengine's products gain from."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    words = f"{cores} cores to use"
    if not cpuinfo.is_file():
        return ok("processor", words)
    said = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", cpuinfo.read_text(errors="replace"), re.MULTILINE)
    has = [name for name in FEATURES if said and name in said[1].split()]
    if not has:
        return note("processor", f"{words}, none of {', '.join(FEATURES)}", "refengine and llama_cpp will be slow here")
    return ok("processor", f"{words}, with {', '.join(has)}")


def memory(meminfo: Path = Path("/proc/meminfo"), limit: Path = Path("/sys/fs/cgroup/memory.max")) -> Sign:
    """Memory to be had, a container's limit counted."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB", meminfo.read_text() if meminfo.is_file() else "", re.MULTILINE)
    if not found:
        return note("memory", "not told by this system")
    free = 1024.0 * int(found[1])
    top = limit.read_text().strip() if limit.is_file() else "max"
    words = f"{free / 1e9:.1f} GB free"
    if top.isdigit():
        words += f", at most {int(top) / 1e9:.1f} GB in this container"
        free = min(free, float(top))
    if free < ENGINE_BYTES:
        remedy = "refengine with its default model may not fit; stop other programs, or run elsewhere"
        return lack("memory", words, remedy)
    return ok("memory", words)


def disk(output: Path = Path("runs")) -> list[Sign]:
    """Room where runs and fetched data go."""
    places = {"run folders": (output, "output=DIR"), "cache": (cache_dir(), "XDG_CACHE_HOME")}
    return [_room(name, path, change) for name, (path, change) in places.items()]


def _room(name: str, path: Path, change: str) -> Sign:
    there = path.absolute()
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    words = f"{path}: {free / 1e9:.1f} GB free"
    if not os.access(there, os.W_OK | os.X_OK) or not there.is_dir():
        return lack(name, f"{path}: cannot be written", f"name another folder with {change}")
    if free < FREE_BYTES:
        return note(name, words, f"a run that fills the disk is stopped and can be resumed; or use {change}")
    return ok(name, words)


def fonts() -> Sign:
    """The report embeds none: its reader's browser chooses. Plots only measure their texts, with a font of matplotlib's."""
    from matplotlib.font_manager import findfont

    try:
        findfont("DejaVu Sans", fallback_to_default=False)
    except ValueError:
        return lack("fonts", "matplotlib has no DejaVu Sans", "labels in plots may overlap: install matplotlib anew")
    return ok("fonts", "DejaVu Sans measures the plots' labels; the report embeds no font")


def proxies(env: Mapping[str, str]) -> Sign:
    """Names alone: a proxy's address can hold a password."""
    found = sorted(name for name in env if name.lower() in PROXIES and env[name])
    if not found:
        return ok("proxies", "none set")
    return note("proxies", f"{', '.join(found)} set", "ignored towards engines; `evalrig fetch` lets pip use them")
