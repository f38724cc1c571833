"""The explorer of a what-if's page, in a real browser."""

from pathlib import Path

from browser import needs_browser, open_pages
from synthetic_whatif import BANDWIDTHS, Vary, World, write_whatif

from sfl_sim.features.whatif.load import load_whatif
from sfl_sim.features.whatif.page import write_whatif as write_page
from sfl_sim.report.display import duration

CUTS = Vary("model.cut", (1, 3, 11, 23), ("dw1", "dw2", "dw6", "dw12"), base=0)
WATCH = """<script>addEventListener("load", () => setTimeout(() => {
  const seen = () => ({
    rows: [...document.querySelectorAll("#explored tbody tr")].map(
      (row) => [...row.cells].map((cell) => cell.innerText)),
    link: document.querySelector("#explore a").hash, width_px: innerWidth,
    overflow_px: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  });
  const first = seen(), selects = document.querySelectorAll("#explore select");
  location.hash = "#explore=2,0,3,0";
  setTimeout(() => parent.postMessage(JSON.stringify({ first, then: seen() }), "*"), 300);
}, 500));</script>"""


@needs_browser
def test_a_reader_pins_values_and_a_link_restores_the_view(tmp_path: Path) -> None:
    folder = write_whatif(tmp_path / "asked", World(axes=(CUTS, BANDWIDTHS), clients=3))
    page = write_page(folder, folder / "whatif.html")
    whatif = load_whatif(folder)
    seconds = whatif.middle.set_index(["model.cut", BANDWIDTHS.key])["round_s"]
    for told in open_pages([(page, px) for px in (1280, 390)], WATCH, tmp_path):
        first, then = told["first"], told["then"]
        assert first["overflow_px"] == then["overflow_px"] == 0
        assert [row[2] for row in first["rows"]] == [duration(seconds[cut, 2]) for cut in range(4)]
        best = [row[0].split("\n")[0] for row in first["rows"] if "best" in row[0]]
        assert best == [whatif.along.names[whatif.best(whatif.series[0])].striptags()]
        assert then["link"] == "#explore=2,0,3,0"
        assert [row[2] for row in then["rows"]] == [duration(seconds[3, at]) for at in range(5)]
        assert not any("best" in row[0] for row in then["rows"])  # nobody chooses a bandwidth
