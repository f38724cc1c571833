"""The page on loss landscapes: widths, curves over seeds, and planes that can be compared."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from read_table import numbers

from sfl_sim.metrics.geometry import width, with_widths
from sfl_sim.report.frames import Frames, ShownVariant, merge
from sfl_sim.report.load import load
from sfl_sim.report.pages.landscape import MAX_RISE, contours, headline, rise_along, undertrained, write_landscape

ALPHAS = np.linspace(-1, 1, 41)


def line(loss: np.ndarray, seed: int = 0) -> pd.DataFrame:
    return pd.DataFrame({"alpha": ALPHAS, "beta": 0.0, "loss": loss, "accuracy": np.exp(-loss), "seed": seed})


def figures_of(frames: Frames, *planes: pd.DataFrame) -> list[go.Figure]:
    return [draw() for _, draw in contours([(frames.variants[0], points) for points in planes])]


def plane() -> pd.DataFrame:
    """A valley along the first direction, so that a page that swaps the two shows another one."""
    alpha, beta = (grid.ravel() for grid in np.meshgrid([-1.0, 0.0, 1.0], [-1.0, 0.0, 1.0]))
    return pd.DataFrame({"alpha": alpha, "beta": beta, "loss": 1 + beta**2, "accuracy": 0.5, "seed": 0})


@pytest.fixture
def points(frames: Frames) -> pd.DataFrame:
    """Of all variants and seeds; the later the variant, the steeper."""
    found = []
    for steepness, variant in enumerate(frames.variants, start=1):
        lines = [line(0.5 + steepness * (1 + seed) * ALPHAS**2, seed).assign(slice="line") for seed in (0, 1)]
        rows = pd.concat([*lines, plane().assign(slice="plane")])
        found.append(rows.assign(run=str(variant.run.folder), variant=variant.name, samples=1000))
    return with_widths(pd.concat(found))


def test_seeds_of_unequal_depth_are_compared_by_what_their_losses_rise(frames: Frames) -> None:
    variant = frames.variants[0]
    seeds = pd.concat([line(depth + slope * np.abs(ALPHAS), n) for n, (depth, slope) in enumerate(SLOPES)])
    band, middle = rise_along([(variant, seeds)]).data
    assert middle.y == pytest.approx(2 * np.abs(ALPHAS))
    assert (max(band.y), min(band.y)) == (pytest.approx(3), pytest.approx(0))
    assert rise_along([(variant, seeds)]).layout.yaxis.range[1] == MAX_RISE


SLOPES = [(0.2, 1), (1.0, 2), (5.0, 3)]


def test_planes_share_their_colours_and_lie_as_they_should(frames: Frames) -> None:
    shallow, steep = plane(), plane().assign(loss=lambda points: points["loss"] ** 3)
    one, other = (figure.data[0] for figure in figures_of(frames, shallow, steep))
    assert (one.zmin, one.zmax) == (other.zmin, other.zmax) == (0, pytest.approx(np.log(8)))
    assert one.contours.to_plotly_json() == other.contours.to_plotly_json()
    assert np.exp(one.z).tolist() == [pytest.approx([loss] * 3) for loss in (2, 1, 2)]  # rows are the second direction


@pytest.mark.parametrize(
    ("least", "most", "ticks"),
    [
        (0.9, 4.0, ["1", "1.5", "2", "3"]),
        (0.09, 20.0, ["0.1", "0.3", "1", "3", "10"]),
        (1.0, 1e4, ["1", "10", "100", "1000", "10000"]),
    ],
)
def test_the_colour_bar_has_a_few_round_losses(frames: Frames, least: float, most: float, ticks: list[str]) -> None:
    points = plane().assign(loss=np.geomspace(least, most, 9))
    (figure,) = figures_of(frames, points)
    assert list(figure.data[0].colorbar.ticktext) == ticks
    assert np.exp(figure.data[0].colorbar.tickvals) == pytest.approx(list(map(float, ticks)))


def test_where_a_model_can_be_computed_no_more_the_plane_has_a_hole(frames: Frames) -> None:
    far = plane()
    far.loc[far["beta"] == 1, "loss"] = np.inf
    (figure,) = figures_of(frames, far)
    assert np.isnan(figure.data[0].z).sum() == 3
    assert figure.data[0].zmax == pytest.approx(np.log(2))


def test_the_page_shows_every_variant_and_its_width(frames: Frames, points: pd.DataFrame, tmp_path: Path) -> None:
    page = write_landscape(frames, points, tmp_path / "new" / "page.html").read_text(encoding="utf-8")
    assert page.count('class="plotly-graph-div"') == 2 + len(frames.variants)
    assert "loss on 1,000 test samples" in page
    assert f">{np.median([width(line(k * ALPHAS**2)) for k in (1, 2)]):.2f}<small>± " in page
    assert "http" not in page[page.index("<body>") :].replace("http://www.w3.org", "")


def test_a_model_that_diverged_has_a_dash(frames: Frames, points: pd.DataFrame, tmp_path: Path) -> None:
    lost = points["variant"] == frames.variants[0].name
    points = with_widths(points.assign(loss=points["loss"].mask(lost)))
    page = write_landscape(frames, points, tmp_path / "page.html")
    row = page.read_text(encoding="utf-8").split("<tbody><tr>")[1].split("</tr>")[0]
    assert row.count("<td>–") == 2


def test_of_several_runs_it_is_told_whose_variant_is_hardly_trained(small_folder: Path, folder: Path) -> None:
    frames = merge([load(small_folder), load(folder)])
    told = undertrained(frames, [(variant, line(np.full(41, 2.0))) for variant in frames.variants])
    assert [text.partition(" is hardly trained")[0] for text in told.values()] == [
        f"{run}: {variant.name}" for run in (small_folder, folder) for variant in frames.variants[:2]
    ]


def test_a_model_of_tokens_is_compared_with_guessing_among_them(frames: Frames) -> None:
    """Samples of text have their owners' labels, of which there may be fewer or more."""
    of_text = replace(frames, layers=frames.layers.assign(out_shape="20x80"))
    lines = [(variant, line(np.full(41, 2.0))) for variant in frames.variants]
    assert len(undertrained(frames, lines)) == len(lines)
    assert undertrained(of_text, lines) == {}
    assert undertrained(replace(frames, layers=frames.layers.assign(out_shape="0")), lines) == {}  # a damaged table


def test_the_widest_minimum_is_told_among_models_that_are_trained(frames: Frames, points: pd.DataFrame) -> None:
    """The first is the flattest and hardly better than guessing: it is warned of, and not praised."""
    first, second, third = frames.variants
    raw = points.assign(loss=points["loss"].where(points["variant"] != first.name, points["loss"] / 100 + 2))

    def lines(points: pd.DataFrame) -> list[tuple[ShownVariant, pd.DataFrame]]:
        found = with_widths(points[points["slice"] == "line"])
        return [(variant, found[found["variant"] == variant.name]) for variant in frames.variants]

    (sentence,) = headline(lines(points))
    by_seed = points[points["alpha"] == 0].groupby(["variant", "seed"])["width"].first()
    widths = by_seed.groupby("variant").median().sort_values(ascending=False)
    assert numbers(sentence.text) == [*(f"{width:.2f}" for width in widths.iloc[:2]), "2", "2"]
    assert (sentence.facts["first"], sentence.facts["next"]) == ([first.label], second.label)
    assert undertrained(frames, lines(points)) == {}
    doubtful = undertrained(frames, lines(raw))
    assert list(doubtful) == [first.label]
    assert "≥ 2.00" in headline(lines(points.assign(loss=points["loss"] / 100)))[0].text  # wider than the line
    (sentence,) = headline([(variant, own) for variant, own in lines(raw) if variant.label not in doubtful])
    assert (sentence.facts["first"], sentence.facts["next"]) == ([second.label], third.label)
