"""One self-contained HTML page about a run: curves, scores, captions, words."""

from pipeline.report.page import write_report

__all__ = ["write_report"]
