"""The evaluation as a page to read: lines of results in, HTML and Markdown out, the same bytes for the same lines."""

from godwit.bench.report.evaluation import Evaluation, read
from godwit.bench.report.headlines import headline
from godwit.bench.report.page import html
from godwit.bench.report.prose import markdown

__all__ = ["Evaluation", "headline", "html", "markdown", "read"]
