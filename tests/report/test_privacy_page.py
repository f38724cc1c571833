"""The page on leakage: what the server can reconstruct, and what that is traded against."""

import base64
import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from markupsafe import escape
from PIL import Image
from read_table import numbers
from synthetic_leaks import PIXELS, add_leaks
from synthetic_run import Setting, World, write_run

from sfl_sim.errors import ScenarioError
from sfl_sim.report.pages.privacy import (
    galleries,
    headline,
    load_results,
    panels,
    privacy_in_terminal,
    write_privacy,
)

POINTS = [{"model.cut": cut, **more} for more in ({}, {"wire.up": "<b>int2"}) for cut in (1, 3)]
NAMES = ["cut=1", "cut=3", "cut=1, <b>int2", "cut=3, <b>int2"]
SSIM = dict(zip(NAMES, [0.9, 0.6, 0.8, 0.5], strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two codecs at two cuts, two seeds."""
    settings = tuple(Setting(name, "splitfed_v2", "fcfs", 0.8, 0.1) for name in NAMES)
    world = World(name="leaky", variants=settings, clients=4, rounds=4, batches=3)
    run = write_run(tmp_path_factory.mktemp("runs") / "leaky", world)
    scenario = yaml.safe_load((run / "scenario.yaml").read_text())
    (run / "scenario.yaml").write_text(yaml.safe_dump(scenario | {"grid": POINTS}))
    return add_leaks(run, SSIM)


def test_a_variant_has_the_medians_of_its_last_round(folder: Path) -> None:
    leaks = load_results(folder)
    assert leaks.middle["ssim"].tolist() == pytest.approx([value + 0.005 for value in SSIM.values()])
    assert leaks.middle["cut"].tolist() == [1, 3, 1, 3]
    assert leaks.known_without("mean", "ssim") == 0.1


def test_variants_that_differ_in_their_cut_alone_are_one_line(folder: Path) -> None:
    leaks = load_results(folder)
    assert [str(series.label) for series in leaks.all_series] == ["", "&lt;b&gt;int2"]
    drawn = dict(panels(leaks)[0].figures)
    for line in drawn["What the server can reconstruct"].data[:2]:
        assert list(line.x) == [0, 1]
    assert [list(line.y) for line in drawn["What the server can reconstruct"].data[:2]] == [
        pytest.approx([0.905, 0.605]),
        pytest.approx([0.805, 0.505]),
    ]


def test_a_target_that_one_seed_reaches_by_chance_is_no_measure_of_time(folder: Path, tmp_path: Path) -> None:
    run = shutil.copytree(folder, tmp_path / "run")
    summary = json.loads((run / "summary.json").read_text())
    for trial in summary["variants"]:
        trial["time_to_accuracy_s"] = 60.0 if (trial["name"], trial["seed"]) == ("cut=1", 0) else None
    (run / "summary.json").write_text(json.dumps(summary))

    (title, figure), *_ = panels(load_results(run))[0].figures

    assert title == "Time of a round"
    assert np.isfinite(figure.data[0].y).all()


def test_the_front_is_ringed_in_every_figure(folder: Path) -> None:
    leaks = load_results(folder)
    leaks.middle["best"] = [False, True, False, True]
    for _, figure in panels(leaks)[0].figures:
        assert list(figure.data[-1].x) == [1, 1]


def test_what_leaks_less_in_the_same_time_is_on_the_front(folder: Path) -> None:
    leaks = load_results(folder)
    middle = leaks.middle
    for label, row in middle.iterrows():
        others = middle.drop(label)
        beaten = (
            (others["time_s"] <= row["time_s"])
            & (others["accuracy"] >= row["accuracy"])
            & (others["ssim"] <= row["ssim"])
        )
        assert row["best"] == (not beaten.any())


def test_the_same_samples_stand_above_all_that_was_drawn_of_them(folder: Path) -> None:
    before, first, second = galleries(load_results(folder))
    assert [strip.name for strip in before.strips] == ["The samples", "The mean image"]
    assert [re.sub("<[^>]*>", "", strip.name) for strip in first.strips] == ["Cut after conv1", "Cut after conv3"]
    assert first.strips[0].about == "SSIM 0.90, PSNR 20.0 dB"
    assert second.name == "&lt;b&gt;int2"
    picture = Image.open(io.BytesIO(base64.b64decode(before.strips[0].uri.partition(",")[2])))
    assert picture.size == (4 + 1 + 4, 4)
    assert np.asarray(picture)[:, :4, 0].tobytes() == PIXELS


def test_the_headlines_name_who_gives_least_away_and_what_labels_tell(folder: Path) -> None:
    leak, *_, labels = headline(load_results(folder))
    assert (leak.facts["first"], leak.facts["next"]) == ([escape(NAMES[3])], NAMES[1])
    assert leak.facts["medians"][NAMES[0]] == pytest.approx(0.905)
    assert "<b>cut=3, &lt;b&gt;int2</b>" in leak.text
    assert labels.facts == {"clusters": (0.95, 0.95), "commonest": (0.2, 0.2), "clusters by chance": (0.22, 0.22)}
    assert "labels travel with what goes up" in labels.text


def test_every_number_on_top_is_in_the_stored_tables(folder: Path, tmp_path: Path) -> None:
    """Seeds of one variant differ, and so do variants: the sentence has medians of variants, and no seed's number."""
    run = shutil.copytree(folder, tmp_path / "run")
    stored = pd.read_parquet(run / "leakage.parquet")
    sorting, other = stored["attack"] == "clusters", stored["variant"] == NAMES[1]
    stored.loc[sorting & other, "value"] = stored.loc[sorting & other, "seed"].map({0: 0.5, 1: 0.7})
    stored.to_parquet(run / "leakage.parquet")
    leak, *_, labels = headline(load_results(run))

    last = stored[(stored["round"] == 4) & (stored["client"] == -1) & (stored["cut"] > 0)]
    middle = last.groupby(["attack", "metric", "variant"])[["value", "chance"]].median()
    ssim = middle.loc["inversion", "ssim"]["value"].sort_values()
    clusters, commonest = middle.loc["clusters", "accuracy"], middle.loc["commonest label", "accuracy"]["value"]
    assert numbers(leak.text) == [*(f"{value:.2f}" for value in ssim.iloc[:2]), "2", "2"]
    shares = [clusters["value"].min(), clusters["value"].max(), commonest.median(), clusters["chance"].median()]
    assert numbers(labels.text) == [f"{100 * share:.0f}" for share in shares] == ["60", "95", "20", "22"]


def test_rounds_while_the_model_learns_have_a_panel(folder: Path) -> None:
    *_, over_rounds = panels(load_results(folder))
    ((_, figure),) = over_rounds.figures
    assert [list(line.x) for line in figure.data] == [[1, 4]] * 4


def test_page_and_terminal_have_a_row_for_each_variant(folder: Path, tmp_path: Path) -> None:
    text = write_privacy(folder, tmp_path / "privacy.html").read_text()
    assert text.count('<img src="data:image/png;base64,') == 2 + 4
    assert "<b>int2" not in text.replace("&lt;b&gt;int2", "")
    assert "Who can mount which attack" in text
    *_, table = privacy_in_terminal(folder).renderables
    assert table.row_count == 4


def test_chance_stands_below_each_figure_of_what_leaks_if_it_is_known(folder: Path, tmp_path: Path) -> None:
    (table,) = panels(load_results(folder))[0].tables
    below = dict(zip(table.titles, [cell.below for cell in table.rows[0]], strict=True))
    assert below["SSIM"] == "± 0.01; by chance 0.22"
    assert below["Labels by clusters"] == "by chance 22\u00a0%"
    assert "chance" not in below["Accuracy"]
    run = shutil.copytree(folder, tmp_path / "run")
    old = pd.read_parquet(run / "leakage.parquet").assign(chance=float("nan"))
    old.to_parquet(run / "leakage.parquet")
    leaks = load_results(run)
    assert "chance" not in str([cell for row in panels(leaks)[0].tables[0].rows for cell in row])
    assert np.isnan(headline(leaks)[-1].facts["clusters by chance"]).all()


def test_a_run_without_attacks_is_refused_in_one_line(run_folder: Path, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"leakage\.parquet"):
        load_results(run_folder)
    run = shutil.copytree(folder, tmp_path / "run")
    pd.read_parquet(run / "leakage.parquet").head(0).to_parquet(run / "leakage.parquet")
    with pytest.raises(ScenarioError, match="nothing to report"):
        load_results(run)


def test_a_seed_that_misses_the_target_is_told(folder: Path, tmp_path: Path) -> None:
    run = shutil.copytree(folder, tmp_path / "run")
    summary = json.loads((run / "summary.json").read_text())
    for trial in summary["variants"]:
        late = trial["name"] == NAMES[0] and trial["seed"] == 0
        trial |= {"target_accuracy": 0.5, "time_to_accuracy_s": None if late else 60.0, "rounds_to_accuracy": 1}
    (run / "summary.json").write_text(json.dumps(summary))
    (panel,) = [panel for panel in panels(load_results(run)) if panel.tables]
    assert [row[1].below for row in panel.tables[0].rows] == ["1 of 2 seeds", "", "", ""]


def test_texts_and_vectors_have_no_pictures(folder: Path, tmp_path: Path) -> None:
    run = shutil.copytree(folder, tmp_path / "run")
    (run / "reconstructions.parquet").unlink()
    table = pd.read_parquet(run / "leakage.parquet")
    table["metric"] = table["metric"].replace({"ssim": "token_accuracy", "psnr": "mse"})
    table.to_parquet(run / "leakage.parquet")
    leaks = load_results(run)
    assert galleries(leaks) == []
    assert "Tokens read" in headline(leaks)[0].facts["compared"]
    assert "<img" not in write_privacy(run, tmp_path / "privacy.html").read_text().partition("<main>")[2]
