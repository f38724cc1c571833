"""Makes the pictures of the gallery and the README: runs the command of each, and photographs a figure of its page.

    make gallery, or python docs/gallery/make.py [NAME ...]

Without names it makes those that are older than the code of the pages or than their scenario (`stale`). Trials that an
earlier run has finished are not trained again. Needs `pip install '.[figures]'`, and Chrome or Chromium.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from sfl_sim.scenario.files import scenario_file, scenario_names

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / "sfl_sim"
MADE = HERE / "made.json"
"""The `digest` with which each picture was made."""
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


def digest(picture: Picture) -> str:
    """Return 16 hex digits of what decides how a picture looks: its command, its scenario, and the code of pages."""
    words = [word.removeprefix("reports/") for word in shlex.split(picture.command)]
    scenario = scenario_file(next(word for word in words if word in scenario_names()))
    kinds = "report/**/*.py", "report/templates/*", "features/*/page.py", "features/*/figures.py"
    code = sorted(path for kind in kinds for path in PACKAGE.glob(kind))
    parts = [repr(picture).encode(), *(path.read_bytes() for path in [scenario, *code])]
    return hashlib.blake2b(b"\0".join(parts), digest_size=8).hexdigest()


def stale() -> list[str]:
    """Return the names of the pictures that were made with other code or another scenario, or were not made."""
    made = json.loads(MADE.read_text()) if MADE.exists() else {}
    return [name for name, picture in PICTURES.items() if made.get(name) != digest(picture)]


async def photograph(picture: Picture, to: Path) -> None:
    """Write the part of a page below a heading as PNG."""
    from choreographer import Browser
    from PIL import Image

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
    done: set[str] = set()
    for name in sys.argv[1:] or stale():
        picture = PICTURES[name]
        if picture.command not in done:
            subprocess.run(shlex.split(picture.command), check=True)
            done.add(picture.command)
        asyncio.run(photograph(picture, HERE / f"{name}.png"))
        made = json.loads(MADE.read_text()) if MADE.exists() else {}
        MADE.write_text(json.dumps(dict(sorted({**made, name: digest(picture)}.items())), indent=2) + "\n")
