"""The report in a real browser, wide and as narrow as a phone: nothing overlaps, nothing sticks out, the script runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report import html
from tests.unit.evaluation_lines import evaluation, full

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")

# Boxes of texts are a little larger than their ink: touching by a pixel or two is no overlap.
LOOK = """
<script>
document.body.style.width = "WIDTHpx";
const found = {overlaps: [], outside: [], texts: 0, scheme: getComputedStyle(document.body).backgroundColor};
for (const chart of document.querySelectorAll(".chart")) {
  const texts = [...chart.querySelectorAll("text")].map((node) => [node.textContent, node.getBoundingClientRect()]);
  const frame = chart.getBoundingClientRect();
  found.texts += texts.length;
  texts.forEach(([words, box], index) => {
    if (box.left < frame.left - 2 || box.right > frame.right + 2) found.outside.push(words);
    for (const [other, next] of texts.slice(index + 1)) {
      const aside = box.right < next.left + 2 || next.right < box.left + 2;
      const above = box.bottom < next.top + 3 || next.bottom < box.top + 3;
      if (!aside && !above) found.overlaps.push([chart.getAttribute("aria-label"), words, other]);
    }
  });
}
for (const node of document.querySelectorAll("p, h1, h2, h3, figure, nav, .scroll, .chart"))
  if (node.getBoundingClientRect().right > WIDTH + 1) found.outside.push(node.tagName);
document.querySelector("nav button").click();
found.switched = getComputedStyle(document.body).backgroundColor;
const told = document.createElement("pre");
told.id = "found";
told.textContent = JSON.stringify(found);
document.body.append(told);
</script>
"""


def looked_at(tmp_path: Path, width: int) -> dict[str, Any]:
    page = tmp_path / "page.html"
    script = LOOK.replace("WIDTH", str(width))
    page.write_text(html(evaluation(full())).replace("</body>", f"{script}</body>"), encoding="utf-8")
    flags = "--headless --no-sandbox --disable-gpu --disable-background-networking --virtual-time-budget=2000"
    size = f"--window-size={max(width, 500)},900"
    command = [
        str(CHROMIUM),
        *flags.split(),
        size,
        f"--user-data-dir={tmp_path / 'profile'}",
        "--dump-dom",
        page.as_uri(),
    ]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    told = re.findall(r'<pre id="found">(.*?)</pre>', shown, re.DOTALL)
    assert told, "the page's scripts did not run to their end"
    found: dict[str, Any] = json.loads(unescape(told[0]))
    return found


@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_reads_well(tmp_path: Path, width: int) -> None:
    found = looked_at(tmp_path, width)
    assert found["texts"] > 500
    assert found["overlaps"] == []
    assert found["outside"] == []
    assert found["switched"] != found["scheme"], "the button changes light to dark or dark to light"
