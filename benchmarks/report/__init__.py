"""The evaluation as a page to read: lines of results in, HTML and Markdown out, the same bytes for the same lines."""

from benchmarks.plots.evaluation import Evaluation, read
from benchmarks.report.headlines import headline
from benchmarks.report.page import html
from benchmarks.report.prose import markdown

__all__ = ["Evaluation", "headline", "html", "markdown", "read"]
