"""The pages as a browser shows them, opened from a file, on a desk and on a phone.

All figures are drawn without an error, and nothing hangs over. Whatever a name says, a page shows it and runs nothing
of it, and nothing is loaded from anywhere.
"""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from browser import needs_browser, open_pages
from markupsafe import Markup
from synthetic_leaks import add_leaks
from synthetic_run import World, write_run
from synthetic_serving import Rule, write_served
from synthetic_serving import World as Served
from synthetic_whatif import Vary, write_whatif
from synthetic_whatif import World as Asked

from sfl_sim.features.serve.page import write_serving
from sfl_sim.features.whatif.page import write_whatif as write_whatif_page
from sfl_sim.metrics.geometry import with_widths
from sfl_sim.report.frames import merge
from sfl_sim.report.html_page import write_page
from sfl_sim.report.lead import Sentence
from sfl_sim.report.load import load
from sfl_sim.report.pages.landscape import write_landscape
from sfl_sim.report.pages.privacy import write_privacy
from sfl_sim.report.pages.run import write_report
from sfl_sim.report.pages.system import PartitionResult, Preview, write_preview

pytestmark = needs_browser

WIDTHS_PX = (1280, 390)
TAG = "<img src=x onerror=hit()>"
HOSTILE = f"{TAG}\"'--></style></script><script>hit()</script>{{{{1}}}}${{body}}%{{x}}&lt;b\u202e\u2028"
"""In the end of every name: each breaks out of another place where somebody might put it."""
WATCH = """<script>
let hits = 0;
const hit = () => { hits += 1; };
const errors = [], refused = [];
console.error = (...told) => errors.push(told.join(" "));
addEventListener("error", (event) => errors.push(event.message));
addEventListener("unhandledrejection", (event) => errors.push(String(event.reason)));
addEventListener("securitypolicyviolation", (event) => refused.push(event.blockedURI));
addEventListener("load", () => setTimeout(async () => {
  const figures = [...document.querySelectorAll(".js-plotly-plot, .plotly-graph-div")];
  const drawn = figures.filter((figure) => figure.querySelector("svg.main-svg"));
  const overflow_px = Math.max(0, document.documentElement.scrollWidth - document.documentElement.clientWidth);
  const found = [...errors];
  drawn.forEach((figure) => {
    try {
      Plotly.Fx.hover(figure, [{ curveNumber: figure.data.length - 1, pointNumber: 0 }]);
    } catch { } // it has nothing to say there
  });
  const told = {
    page: document.title, width_px: innerWidth, errors: found, hits, refused, overflow_px,
    figures: figures.length, drawn: drawn.length,
    images: document.querySelectorAll("body img").length,
    text: document.querySelector("main").innerText,
    drawn_text: [...document.querySelectorAll("svg.main-svg text")].map((text) => text.textContent).join(" "),
    picture: drawn.length ? (await Plotly.toImage(drawn[0], { format: "png" })).slice(0, 15) : null,
  };
  parent.postMessage(JSON.stringify(told), "*");
}, 1000));
</script>"""
"""Tells the frame around a page what became of it: files cannot look into each other, but may send messages."""
KEPT = {"node", "kind", "slice", "how", "threshold", "status", "key", "created"}
"""What the program itself writes, from a few words of its own."""


def poisoned(value: Any, key: str = "") -> Any:
    """The value with every text in it made hostile."""
    if isinstance(value, dict):
        return {name: poisoned(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [poisoned(inner, key) for inner in value]
    return value + HOSTILE if isinstance(value, str) and key not in KEPT else value


def poison(folder: Path) -> Path:
    """Make every name in the tables and texts of a stored folder hostile."""
    for path in folder.glob("*.parquet"):
        table = pd.read_parquet(path)
        for column in table.columns.difference(list(KEPT)):
            is_text = table[column].map(lambda cell: isinstance(cell, str))
            if is_text.any():
                table[column] = table[column].astype(object).where(~is_text, table[column].astype(str) + HOSTILE)
        table.to_parquet(path, index=False)
    for path in folder.glob("*.json"):
        path.write_text(json.dumps(poisoned(json.loads(path.read_text()))))
    for path in folder.glob("*.yaml"):
        scenario = poisoned(yaml.safe_load(path.read_text())) | {
            HOSTILE: folder.name
        }  # side by side, they differ in it
        path.write_text(yaml.safe_dump(scenario))
    return folder


def stored_run(folder: Path, **more: Any) -> Path:
    """A run of two variants, the first of which says something of everything that can go wrong."""
    run = write_run(
        folder, World(variants=World().variants[:2], clients=4, rounds=4, batches=3, seeds=(0,), reference="hydra")
    )
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | more))
    return poison(run)


FAILED = {"status": "failed", "failed": [{"variant": "x", "seed": 0, "round": 1, "error": "RuntimeError: no"}]}
VERDICT = {
    "variant": "splitfed_v2, fcfs", "seed": 0, "rounds": 2, "valid_rounds": 1,
    "reason": "clients arrive in another order", "before_s": 1.0, "after_s": 2.0, "to_accuracy_before_s": None,
}  # fmt: skip
CHANGES = {"clients.network.scale": ["1", "4"]}
REPRICED = {"repriced_from": {"folder": "reports/run", "scenario": "0", "changes": CHANGES}, "repriced": [VERDICT]}


def pages(place: Path) -> Iterator[Path]:
    one = stored_run(place / f"one{TAG}", **FAILED)
    other = stored_run(place / f"other{TAG}", **REPRICED)
    yield write_report([one], place / "report.html")
    yield write_report([one, other], place / "side by side.html")
    counts = pd.DataFrame([[1, 2], [0, 0]], columns=["cat" + HOSTILE, "dog" + HOSTILE])
    partitions = [PartitionResult(name + HOSTILE, counts, 4) for name in ("iid", "natural")]
    yield write_preview(Preview("preview" + HOSTILE, "digits" + HOSTILE, partitions, 1), place / "preview.html")
    axes = (Vary("model.cut", (1, 3), ("dw1", "dw2"), base=0), Vary("data.name", ("a", "b"), ("a", "b"), base=1))
    asked = Asked(axes=axes, clients=3, series=(("splitfed_v2", 1.0), ("hydra", 1.2)), trained=(1, 3), status="killed")
    yield write_whatif_page(poison(write_whatif(place / "whatif", asked)), place / "whatif.html")
    served = Served(rules=(Rule("oracle"), Rule("latency_budget", 0.2)), seeds=(0,), requests=100, status="killed")
    yield write_serving(poison(write_served(place / "served", served)), place / "serving.html")
    yield write_privacy(add_leaks(one, {}, pictures=False), place / "privacy.html")
    frames = merge([load(one)])
    points = pd.DataFrame({"alpha": [-1.0, 0, 1] * 3, "beta": [-1.0] * 3 + [0.0] * 3 + [1.0] * 3, "loss": 1.0})
    around = points.assign(accuracy=0.5, seed=0, samples=10, run=str(one))
    slices = [around.assign(slice="plane"), around[3:6].assign(slice="line")]
    surroundings = [rows.assign(variant=variant.name) for variant in frames.variants for rows in slices]
    yield write_landscape(frames, with_widths(pd.concat(surroundings)), place / "landscape.html")


def without_blanks(text: str) -> str:
    """Without white space, with which names are wrapped."""
    return "".join(text.split())


class Server(ThreadingHTTPServer):
    """A server that counts who asks."""

    asked = 0


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.asked += 1  # type: ignore[attr-defined]
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    found = Server(("127.0.0.1", 0), Answer)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield found
    found.shutdown()
    found.server_close()


BROKEN = """<div style="width: 700px">wider than a phone</div><div class="plotly-graph-div">nobody draws it</div>
<script>console.error("said"); Promise.reject("rejected"); nobody_defined_this()</script>"""
ASKING = """<img src="{url}a"><script src="{url}b"></script><link rel="stylesheet" href="{url}c">
<iframe src="{url}d"></iframe><script>fetch("{url}e").catch(() => 0)</script><object data="{url}f"></object>"""


@pytest.fixture(scope="module")
def seen(server: Server, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What became of every kind of page at both widths, with hostile names; and of two that are broken on purpose."""
    place = tmp_path_factory.mktemp("pages")
    frames = [(page, px) for page in pages(place) for px in WIDTHS_PX]
    asking = f"<h1>{HOSTILE}</h1>" + ASKING.format(url=f"http://127.0.0.1:{server.server_port}/")
    for title, body in (("broken", BROKEN), ("asking", asking)):
        page = write_page(place / f"{title}.html", "page", title=title, headlines=[Sentence(Markup(body))])
        frames.append((page, 390))
    return open_pages(frames, WATCH, place)


@pytest.mark.parametrize("px", WIDTHS_PX)
def test_every_figure_is_drawn_without_an_error_and_nothing_hangs_over(seen: list[dict[str, Any]], px: int) -> None:
    shown = [page for page in seen if page["width_px"] == px and not page["page"].startswith(("broken", "asking"))]
    assert len(shown) == 7
    for page in shown:
        assert (page["errors"], page["refused"], page["overflow_px"]) == ([], [], 0), page["page"]
        assert page["drawn"] == page["figures"] > 0, page["page"]


def test_no_page_runs_what_a_name_says_and_every_page_shows_it(seen: list[dict[str, Any]]) -> None:
    for page in seen:
        if page["width_px"] == WIDTHS_PX[0]:
            assert (page["hits"], page["images"]) == (0, 0), page["page"]
            for where in ("page", "text", "drawn_text"):
                assert without_blanks(HOSTILE) in without_blanks(page[where]), page["page"]
            assert page["picture"] == "data:image/png;"  # which the page's own policy lets a reader save


def test_a_page_that_is_broken_is_found_out(seen: list[dict[str, Any]]) -> None:
    (broken,) = (page for page in seen if page["page"].startswith("broken"))
    assert broken["overflow_px"] > 300
    assert (broken["figures"], broken["drawn"]) == (1, 0)
    assert len(broken["errors"]) == 3


def test_a_page_loads_nothing_even_if_something_in_it_asks_to_and_what_runs_is_found_out(
    seen: list[dict[str, Any]], server: Server
) -> None:
    (asking,) = (page for page in seen if page["page"].startswith("asking"))
    assert asking["hits"] > 0
    assert asking["images"] > 0
    assert len(asking["refused"]) >= 6
    assert server.asked == 0
