"""Writes what people and machines read into the run folder; verdict.json last, so that its presence says: all is there."""

from evalrig.evidence import Gathered
from evalrig.records import RunFolder
from evalrig.report.html import html
from evalrig.report.junit import junit
from evalrig.report.markdown import markdown
from evalrig.report.view import page
from evalrig.types import Verdict
from evalrig.verdict import to_json


def write_report(folder: RunFolder, verdict: Verdict, gathered: Gathered | None = None) -> None:
    """Write junit.xml, summary.md, report.html and verdict.json into the run folder."""
    shown = page(folder, verdict, gathered)
    folder.write("junit.xml", junit(verdict))
    folder.write("summary.md", markdown(shown).encode())
    folder.write("report.html", html(shown).encode())
    folder.write("verdict.json", to_json(verdict))
