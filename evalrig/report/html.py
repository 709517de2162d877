"""The page a reviewer signs: one file, no script, nothing fetched, every foreign text escaped by the template."""

import base64
import hashlib
from importlib.resources import files
from typing import Any

from evalrig.report.shown import Page
from evalrig.report.words import visible


def html(page: Page) -> str:
    """The whole document."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    from evalrig.report import plots

    def finalize(value: Any) -> Any:
        return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=finalize
    )
    environment.filters["tone"] = tone
    style = _shipped("style.css")
    forests = [[plots.forest(m.forest, 10 * i + j) for j, m in enumerate(s.metrics)] for i, s in enumerate(page.suites)]
    return environment.from_string(_shipped("template.html")).render(
        page=page,
        style=Markup(style),
        policy=policy(style),
        forests=[[Markup(svg) for svg in row] for row in forests],
        falls=[
            [Markup(plots.survival(view, 10 * i + j)) for j, view in enumerate(suite.steps.survival)]
            if suite.steps
            else []
            for i, suite in enumerate(page.suites)
        ],
        loads=[
            [Markup(plots.picture(one, 10 * i + j)) for j, one in enumerate(suite.load.pictures)] if suite.load else []
            for i, suite in enumerate(page.suites)
        ],
        positions=[Markup(plots.positions(view, number)) for number, view in enumerate(page.distances)],
    )


def policy(style: str) -> str:
    """Nothing may be loaded or run; the one style sheet is allowed by its digest."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def tone(word: str) -> str:
    """The style sheet's class for an outcome, a level or a check."""
    return {
        "GO": "good",
        "pass": "good",
        "proved": "good",
        "NO-GO": "bad",
        "fail": "bad",
        "INVALID": "broken",
        "invalid": "broken",
        "certified": "good",
        "conditional": "open",
        "vacuous": "plain",
        "INCONCLUSIVE": "open",
        "undecided": "open",
        "held back": "open",
        "warning": "open",
        "REHEARSAL": "open",
        "REHEARSAL (no verdict)": "open",
        "REHEARSAL: INVALID": "broken",
        "exercised": "open",
    }.get(word, "plain")


def _shipped(name: str) -> str:
    return files("evalrig.report").joinpath(name).read_text(encoding="utf-8")
