"""The report in a real browser: it renders, loads nothing, breaks no rule of its own policy, and fits a phone."""

import http.server
import json
import os
import re
import runpy
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from evalrig.report.html import html
from evalrig.report.view import page
from evalrig.verdict import judge

FABRICATED = Path(__file__).parents[1] / "unit" / "report" / "conftest.py"
EVIL = "<script>document.title='owned'</script></style></div>]]><img src=/owned.png onerror=document.title='owned'>"
MISSING = "no chromium here; install it: apt-get update && apt-get install -y chromium"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--v=0",
)
MEASURE = """<!DOCTYPE html><meta charset="utf-8"><title>waiting</title><body><script>
const frame = document.createElement("iframe");
frame.style.width = "WIDTHpx"; frame.style.height = "900px"; frame.style.border = "0";
frame.onload = () => {
  const inner = frame.contentDocument, root = inner.documentElement;
  const wide = [...inner.querySelectorAll("main *")].filter(e => !e.closest(".scroll, pre, .said")
    && e.getBoundingClientRect().right > root.clientWidth + 1).map(e => e.tagName + "." + e.className);
  document.body.dataset.found = JSON.stringify({client: root.clientWidth, scroll: root.scrollWidth, wide: wide.slice(0, 5),
    title: inner.title, scripts: inner.scripts.length, images: inner.images.length, plots: inner.querySelectorAll("svg").length,
    plotHeight: Math.min(...[...inner.querySelectorAll("svg")].map(e => e.getBoundingClientRect().height)),
    body: getComputedStyle(inner.body).marginTop});
};
frame.src = "/report.html";
document.body.append(frame);
</script>"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves the folder and keeps what was asked for."""

    asked: list[str]

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on stderr."""

    def do_GET(self) -> None:
        type(self).asked.append(self.path)
        super().do_GET()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = runpy.run_path(str(FABRICATED))
    where = tmp_path_factory.mktemp("site")
    with mock.patch("os.fsync"):
        folder = made["make_run"](where / "runs", made["Made"](answer=EVIL, question=EVIL))
    document = html(page(folder, judge(folder)))
    (where / "report.html").write_text(document, encoding="utf-8")
    for width in (400, 1100):
        (where / f"measure-{width}.html").write_text(MEASURE.replace("WIDTH", str(width)), encoding="utf-8")
    return where


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    Quiet.asked = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def browse(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Chromium once; its profile lies in a folder that is thrown away."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.fail(MISSING)

    def run(url: str, *flags: str) -> subprocess.CompletedProcess[str]:
        command = [
            chromium,
            *FLAGS,
            f"--user-data-dir={tmp_path / 'profile'}",
            "--virtual-time-budget=4000",
            *flags,
            url,
        ]
        home = {**os.environ, "HOME": str(tmp_path)}
        return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, env=home)

    return run


def test_it_renders_without_a_complaint_and_asks_for_nothing(
    browse: Callable[..., subprocess.CompletedProcess[str]], address: str
) -> None:
    Quiet.asked.clear()
    done = browse(f"{address}/report.html", "--dump-dom")
    assert done.returncode == 0, done.stderr
    assert "Decision of the reviewer" in done.stdout
    assert "&lt;script&gt;document.title" in done.stdout
    assert re.search(r"<title>NO-GO: made-up", done.stdout)
    assert not re.findall(r".*(?:CONSOLE|Content Security Policy|Refused to).*", done.stderr)
    assert [path for path in Quiet.asked if path != "/favicon.ico"] == ["/report.html"]


@pytest.mark.parametrize("width", [400, 1100])
def test_nothing_sticks_out_and_no_script_came_in(
    browse: Callable[..., subprocess.CompletedProcess[str]], address: str, width: int
) -> None:
    done = browse(f"{address}/measure-{width}.html", "--window-size=1200,1000", "--dump-dom")
    packed = re.search(r'data-found="([^"]*)"', done.stdout)
    assert packed, done.stderr
    found = json.loads(packed[1].replace("&quot;", '"'))
    assert found["scroll"] <= found["client"] == width
    assert found["wide"] == []
    assert (found["scripts"], found["images"], found["title"]) == (0, 0, "NO-GO: made-up (evalrig)")
    assert found["plots"] == 3
    assert found["plotHeight"] > 80
    assert found["body"] == "0px", "the style sheet was not applied"


@pytest.mark.parametrize("scheme", [0, 1], ids=["dark", "light"])
def test_a_picture_can_be_taken_from_the_file_itself(
    browse: Callable[..., subprocess.CompletedProcess[str]], site: Path, tmp_path: Path, scheme: int
) -> None:
    picture = tmp_path / "page.png"
    flags = (f"--blink-settings=preferredColorScheme={scheme}", "--window-size=900,1200", f"--screenshot={picture}")
    done = browse(f"file://{site}/report.html", *flags)
    assert picture.is_file(), done.stderr
    first = _corner(picture)
    assert (sum(first) < 150) == (scheme == 0), f"top left pixel is {first}"


def _corner(picture: Path) -> tuple[int, ...]:
    from matplotlib.image import imread

    return tuple(int(255 * value) for value in imread(picture)[0, 0][:3])
