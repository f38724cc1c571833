"""Tables and figures for other programs and for papers."""

import json
import re
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.io
import pytest
from command import sfl_sim
from PIL import Image
from synthetic_run import World, write_run

from sfl_sim.api import Results
from sfl_sim.errors import ScenarioError
from sfl_sim.report import export
from sfl_sim.report.export import export_runs, tables
from sfl_sim.report.frames import Frames, merge
from sfl_sim.report.load import load
from sfl_sim.report.pages.run import panels
from sfl_sim.report.panel import Cell, Table
from sfl_sim.report.results import aims, results_table


def test_results_are_medians_and_deviations_of_the_seeds(run_folder: Path) -> None:
    found = tables([load(run_folder)])

    seeds = found["seeds"].groupby("variant")["accuracy"]
    results = found["results"].set_index("variant")
    assert results["accuracy_median"].to_dict() == pytest.approx(seeds.median().to_dict())
    assert results["accuracy_sd"].to_dict() == pytest.approx(seeds.std().to_dict())
    assert set(results["run"]) == {"heterogeneous_bw"}


def test_where_most_seeds_do_not_arrive_the_median_is_unknown_and_those_that_do_are_counted(
    small: World, tmp_path: Path
) -> None:
    folder = write_run(tmp_path / "run", replace(small, seeds=(0, 1, 2)))
    stored = json.loads((folder / "summary.json").read_text())
    for variant, rounds in zip(stored["variants"], [1, None, None, 1, 3, None], strict=True):
        variant["rounds_to_accuracy"] = rounds
    (folder / "summary.json").write_text(json.dumps(stored))

    results = tables([load(folder)])["results"]

    assert results["seeds_to_accuracy"].tolist() == [1, 2]
    np.testing.assert_equal(results["rounds_to_accuracy_median"].to_numpy(), [np.nan, 3])


def test_runs_are_joined_and_told_apart(small: World, tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, replace(small, name=name)) for name in ("one", "two")]
    for name, table in tables([load(folder) for folder in folders]).items():
        assert table["run"].value_counts().nunique() == 1, name
        assert list(table["run"].unique()) == ["one", "two"]


def test_csv_and_parquet_hold_the_same(small_folder: Path, tmp_path: Path) -> None:
    written = export_runs([small_folder], tmp_path / "out", ["csv", "parquet"])

    assert len(written.tables) == 2 * len(tables([load(small_folder)]))
    assert written.figures == []
    for path in (tmp_path / "out").glob("*.parquet"):
        stored = pd.read_parquet(path)
        text = pd.read_csv(path.with_suffix(".csv"))
        assert list(text) == list(stored)
        numbers = stored.select_dtypes("number")
        np.testing.assert_allclose(text[list(numbers)].to_numpy(float), numbers.to_numpy(float), rtol=1e-12)


def test_samples_by_label_are_rows_of_their_own(folder: Path) -> None:
    held = [[500, 0], [1, 499], [250, 250], [0, 500]]
    clients = pd.read_parquet(folder / "clients.parquet")
    clients.assign(label_samples=held * 2).to_parquet(folder / "clients.parquet")

    found = tables([load(folder)])

    assert "label_samples" not in found["clients"]
    assert found["holdings"].query("client == 1")["samples"].tolist() == [1, 499] * 2
    assert found["holdings"].groupby(["variant", "client"])["samples"].sum().eq(500).all()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--format", "svg"], "--format: needs a folder: --export DIR"),
        (["--export", "out", "--format", "csv,gif"], "--format: unknown format (found 'gif'; allowed: csv, parquet,"),
    ],
)
def test_a_format_that_leads_nowhere_is_one_line(
    small_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, arguments: list[str], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    sfl_sim("report", small_folder, *arguments, code=2)
    assert line in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_export_has_the_page_beside_it(small_folder: Path, tmp_path: Path, capsys) -> None:
    sfl_sim("report", small_folder, "--export", tmp_path / "out")

    assert re.search(r"out: \d+ tables, 0 figures", capsys.readouterr().out)
    assert {"report.html", "results.csv", "rounds.csv"} <= {path.name for path in (tmp_path / "out").iterdir()}


def test_a_run_s_own_tables_are_not_replaced(folder: Path) -> None:
    before = (folder / "rounds.parquet").read_bytes()
    with pytest.raises(ScenarioError, match="--export: holds a run"):
        export_runs([folder], folder, ["parquet"])
    assert (folder / "rounds.parquet").read_bytes() == before
    export_runs([folder], folder, ["csv"])


def test_without_kaleido_the_extra_is_named_and_nothing_is_written(
    small_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(package: str) -> str:
        if package == "kaleido":
            raise PackageNotFoundError(package)
        return "6.1"

    monkeypatch.setattr(export, "version", version)
    with pytest.raises(ScenarioError, match=r"sfl-sim\[figures\]") as raised:
        export_runs([small_folder], tmp_path / "out", ["csv", "pdf"])
    assert (raised.value.key, raised.value.found) == ("--format", "no kaleido, plotly 6.1")
    assert not (tmp_path / "out").exists()


def test_kaleido_before_1_is_too_old(monkeypatch: pytest.MonkeyPatch, frames: Frames, tmp_path: Path) -> None:
    monkeypatch.setattr(export, "version", {"kaleido": "0.2.1", "plotly": "7.1.0"}.__getitem__)
    with pytest.raises(ScenarioError) as raised:
        export.draw(frames, tmp_path, ["svg"])
    assert (raised.value.key, raised.value.found) == ("--format", "kaleido 0.2.1, plotly 7.1.0")


def test_a_figure_for_paper_has_a_name_of_its_own_is_white_and_names_everything_once(small_folder: Path) -> None:
    found = list(export.drawings(panels(merge([load(small_folder)]))))

    assert len({name for name, _ in found}) == len(found) > 10
    for _, figure in found:
        shown = [trace.name for trace in figure.data if trace.name and trace.showlegend is not False]
        assert len(shown) == len(set(shown))
        assert bool(shown) == figure.layout.showlegend
        assert figure.layout.title.text is None  # a paper has captions
        assert figure.layout.paper_bgcolor == "white"
        assert round(figure.layout.width * export.SCALE / 96, 1) in (export.SINGLE_IN, export.DOUBLE_IN)


def test_the_table_of_results_is_latex(small_folder: Path, tmp_path: Path) -> None:
    export.export_runs([small_folder], tmp_path / "out", ["tex"])
    text = (tmp_path / "out" / "results.tex").read_text()

    table = results_table(merge([load(small_folder)]))
    assert text == table.in_latex() == Results(small_folder).to_latex()
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 1 + len(table.rows)
    assert all(row.count(" & ") == len(table.titles) - 1 for row in rows)
    assert r"\textbf{" in text
    assert not re.search(r"(?<!\\)[%_#]", text)


def test_a_name_that_latex_reads_otherwise_is_escaped() -> None:
    table = Table(["Variant", "A (%)"], [[Cell("50 % & a_b^2 {~} \\x"), Cell("1.0", "± 0.1", 1.0)]])

    assert (
        r"50 \% \& a\_b\textasciicircum{}2 \{\textasciitilde{}\} \textbackslash{}x & 1.0 $\pm$ 0.1 \\"
        in table.in_latex()
    )


def test_no_result_changes_the_name_of_a_file(frames: Frames) -> None:
    heading = f"{frames.variants[2].html}: held idle for 12\u00a0% of the round"

    assert export.file_name("The server's queue", heading) == "the-server-s-queue-hydra-cyclic"
    assert (
        export.file_name("Forgetting", "Performance gap against rounds") == "forgetting-performance-gap-against-rounds"
    )
    assert export.file_name("The fleet", "Link rates: uplink solid") == "the-fleet-link-rates"
    assert export.file_name("Who holds what", "Same for all 3 variants") == "who-holds-what"


def test_another_target_changes_the_name_of_no_file(small_folder: Path) -> None:
    frames, names = merge([load(small_folder)]), []
    for target in (0.7, 0.55):
        aiming = replace(frames, summary=frames.summary.assign(target_accuracy=target))
        drawn = export.drawings(panels(aiming), [aim.name for aim in aims(aiming)])
        names.append([drawing.name for drawing in drawn])

    assert names[0] == names[1]
    assert {"time-to-target-accuracy-against-bytes", "accuracy-by-label"} <= set(names[0])


CHROME = any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome")))


@pytest.mark.skipif(not CHROME, reason="no Chrome or Chromium is installed")
def test_figures_are_drawn_with_axes_and_legend(
    frames: Frames, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("kaleido")
    if not hasattr(plotly.io, "write_images"):
        pytest.skip("this plotly is older than kaleido 1")
    drawn_panels = [panel for panel in panels(frames) if panel.title == "Forgetting"]
    monkeypatch.setattr("sfl_sim.report.pages.run.panels", lambda frames: drawn_panels)

    export.draw(frames, tmp_path, ["svg", "pdf", "png"])

    assert {path.suffix for path in tmp_path.iterdir()} == {".svg", ".pdf", ".png"}
    with Image.open(tmp_path / "forgetting-performance-gap-against-rounds.png") as image:
        assert image.width == pytest.approx(300 * export.SINGLE_IN, abs=4)
    drawn = ET.parse(tmp_path / "forgetting-performance-gap-against-rounds.svg").getroot()
    text = " ".join(drawn.itertext())
    assert "performance gap (points)" in text
    assert "hydra, cyclic" in text
    assert float(drawn.attrib["width"]) / 96 == pytest.approx(export.SINGLE_IN, abs=0.01)
    assert (tmp_path / "forgetting-performance-gap-against-rounds.pdf").read_bytes().startswith(b"%PDF")


def test_without_a_browser_it_says_what_to_do_and_writes_nothing(
    small_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("kaleido")
    if not hasattr(plotly.io, "write_images"):
        pytest.skip("this plotly is older than kaleido 1")
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "nowhere"))
    with pytest.raises(ScenarioError, match="BROWSER_PATH") as raised:
        export_runs([small_folder], tmp_path / "out", ["csv", "svg"])
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()
