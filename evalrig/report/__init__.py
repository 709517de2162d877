"""From a verdict and its evidence to what people read."""

from evalrig.report.writing import write_report

__all__ = ["write_report"]
