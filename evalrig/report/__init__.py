"""From a verdict and its evidence to what people read."""

from evalrig.records import RunFolder
from evalrig.types import Verdict
from evalrig.verdict import to_json


def write_report(folder: RunFolder, verdict: Verdict) -> None:
    """Write verdict.json, junit.xml, summary.md and report.html into the run folder."""
    folder.write("verdict.json", to_json(verdict))
