"""Widths of minima, of curves whose widths are known."""

import numpy as np
import pandas as pd
import pytest

from sfl_sim.metrics.landscape import width, with_widths

ALPHAS = np.linspace(-1, 1, 41)


def line(loss, **about):
    return pd.DataFrame({"alpha": ALPHAS, "loss": loss, "seed": 0, **about})


def test_the_width_of_a_parabola_is_where_it_has_risen_by_ln_2():
    assert width(line(0.3 + 4 * ALPHAS**2)) == pytest.approx(2 * np.sqrt(np.log(2) / 4), rel=2e-3)
    lopsided = np.where(ALPHAS < 0, -4 * ALPHAS, 2 * ALPHAS)
    assert width(line(lopsided)) == pytest.approx(np.log(2) / 4 + np.log(2) / 2)


def test_the_width_of_what_never_rises_is_the_line_and_a_model_without_a_loss_has_none():
    assert width(line(np.ones(41))) == 2
    assert np.isnan(width(line(np.full(41, np.nan))))
    walls = np.where(np.abs(ALPHAS) > 0.52, np.inf, 0.1)
    assert width(line(walls)) == pytest.approx(1.0)


def test_only_the_stretch_around_the_model_counts():
    """Beyond a ridge it may be low again."""
    ridges = np.where(np.isclose(np.abs(ALPHAS), 0.5), 9.0, 0.0)
    assert 0.9 < width(line(ridges)) < 1


def test_a_table_has_the_width_in_the_row_of_each_model_itself():
    about = {"run": "reports/one", "variant": "a", "slice": "line"}
    lines = [line(steepness * ALPHAS**2, **about | {"seed": seed}) for seed, steepness in enumerate((1, 4))]
    plane = line(ALPHAS**2, **about | {"slice": "plane"})
    points = with_widths(pd.concat([*lines, plane]))
    told = points.dropna(subset="width")
    assert told[["slice", "alpha", "seed"]].to_numpy().tolist() == [["line", 0, 0], ["line", 0, 1]]
    assert told["width"].tolist() == [width(one) for one in lines]
