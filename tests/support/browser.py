"""A real browser, without a window, that opens pages from files."""

import html
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FOUND = next(filter(None, map(shutil.which, BROWSERS)), None)
needs_browser = pytest.mark.skipif(FOUND is None, reason=f"none of {', '.join(BROWSERS)} is installed")

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync",
         "--no-first-run", "--virtual-time-budget=5000"]  # fmt: skip
AROUND = """<body><script>
addEventListener("message", (event) => {
  const told = document.createElement("pre");
  told.textContent = event.data;
  document.body.append(told);
});
</script>"""


def open_pages(pages: Sequence[tuple[Path, int]], watch: str, place: Path) -> list[Any]:
    """Open each page in a frame of a width in pixels; gives the JSON that pages post to the parent, in any order.

    Args:
        pages: HTML files with their widths. In frames, since windows of a headless browser are never as narrow as a
            phone.
        watch: put at the beginning of their heads.
        place: a folder for files of ours.
    """
    frames = ""
    for number, (page, px) in enumerate(pages):
        watched = place / f"watched{number}.html"
        watched.write_text(page.read_text(encoding="utf-8").replace("<head>", f"<head>{watch}", 1), encoding="utf-8")
        frames += f'<iframe src="{watched.as_uri()}" width="{px}" height="900"></iframe>'
    around = place / "around.html"
    around.write_text(AROUND + frames, encoding="utf-8")
    command = [str(FOUND), *FLAGS, f"--user-data-dir={place / 'profile'}", "--dump-dom", around.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    return [json.loads(html.unescape(told)) for told in re.findall(r"<pre>(.*?)</pre>", shown, re.DOTALL)]
