"""Makes the pictures of the gallery: runs the command of each page, and photographs a figure of what it writes.

    python docs/gallery/make.py [NAME ...]

Needs `pip install '.[figures]'`, and Chrome or Chromium. Pages that are in `reports/` already are not made again.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from choreographer import Browser
from PIL import Image

HERE = Path(__file__).parent
CUTS = "--vary model.cut=all --vary clients.network.scale=0.1,0.3,1,3,10,30,100"
WIDTH_PX = 1100
PATIENCE_S, SETTLE_S = 60, 5
"""Seconds to wait for the heading, and for figures that were folded."""
COLOURS = 256
"""Enough for text and figures, at fewer bytes."""
FIND = """(() => {
  const texts = [...document.querySelectorAll("h1, h2, h3, summary")];
  const heading = texts.find((each) => each.textContent.trim().startsWith(%s));
  for (let at = heading; at; at = at.parentElement) if (at.tagName == "DETAILS") at.open = true;
  return heading.getBoundingClientRect().top + scrollY - 16;
})()"""


class Picture(NamedTuple):
    """A command, the page that it writes below reports/, the heading above a figure, and the height of the picture."""

    command: str
    page: str
    heading: str
    height_px: int


PICTURES = {
    "report": Picture("sfl-sim heterogeneous_bw", "heterogeneous_bw/report.html", "heterogeneous_bw", 1440),
    "order": Picture("sfl-sim heterogeneous_bw", "heterogeneous_bw/report.html", "Where the time goes", 435),
    "fleet": Picture("sfl-sim unreliable_fleet", "unreliable_fleet/report.html", "Availability and dropouts", 620),
    "mobilenet": Picture(
        f"sfl-sim whatif cuts/mobilenet_v1 {CUTS}", "cuts_mobilenet_v1-whatif/whatif.html", "At other values", 535
    ),
    "resnet18": Picture(
        f"sfl-sim whatif cuts/resnet18 {CUTS}", "cuts_resnet18-whatif/whatif.html", "Time of a round", 530
    ),
    "reprice": Picture(
        "sfl-sim reprice reports/heterogeneous_bw --set clients.network.scale=4",
        "heterogeneous_bw-repriced/report.html",
        "Time to",
        560,
    ),
    "server": Picture(
        "sfl-sim serve serving/fleet --timing-only", "serving_fleet-serving/serving.html", "Under load", 560
    ),
    "exits": Picture("sfl-sim serve serving/early_exit", "serving_early_exit-serving/serving.html", "Under load", 560),
    "partition": Picture(
        "sfl-sim check heterogeneous_bw --partition reports/who.html", "who.html", "Labels held by each client", 620
    ),
}


async def photograph(picture: Picture, to: Path) -> None:
    """Write the part of a page below a heading as PNG."""
    async with Browser() as browser:
        tab = await browser.create_tab(Path("reports", picture.page).resolve().as_uri())
        window = {"width": WIDTH_PX, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        await tab.send_command("Emulation.setDeviceMetricsOverride", window)
        find = {"expression": FIND % json.dumps(picture.heading)}
        for _ in range(PATIENCE_S):
            await asyncio.sleep(1)
            found = (await tab.send_command("Runtime.evaluate", find))["result"]["result"]
            if "value" in found:
                break
        await asyncio.sleep(SETTLE_S)
        top_px = (await tab.send_command("Runtime.evaluate", find))["result"]["result"]["value"]
        clip = {"x": 0, "y": top_px, "width": WIDTH_PX, "height": picture.height_px, "scale": 1}
        shot = await tab.send_command("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
    with Image.open(io.BytesIO(base64.b64decode(shot["result"]["data"]))) as image:
        image.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE).save(to, optimize=True)


if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        if not Path("reports", PICTURES[name].page).exists():
            subprocess.run(shlex.split(PICTURES[name].command), check=True)
        asyncio.run(photograph(PICTURES[name], HERE / f"{name}.png"))
