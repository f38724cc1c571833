"""The page of a benchmark: its table, its sentences, and what it does not say."""

import math

import pandas as pd
import pytest
from read_table import read

from sfl_sim.errors import ScenarioError
from sfl_sim.report.load import BENCHMARK, OWN_LINKS
from sfl_sim.report.pages import benchmark

TRAITS = {"is_split": True, "sends_labels": True, "gets_gradients": True, "keeps_graphs": True, "uploads_model": True}
METHODS = {
    "splitfed_v1": {"score": 0.60, "seconds_to_target": 100.0, "client_memory_bytes": 1000},
    "quick": {"score": 0.58, "seconds_to_target": 40.0, "client_memory_bytes": 500, "gets_gradients": False},
    "never": {"score": 0.20, "seconds_to_target": math.nan, "client_memory_bytes": 250, "keeps_graphs": False},
}


def table(seeds=(1, 2, 3), links=(OWN_LINKS, "wifi")):
    rows = [
        TRAITS | {"track": "small", "variant": name, "seed": seed, "links": link,
                  "holds": name != "quick" or link == OWN_LINKS, "lr": 0.1, "rounds": 10, "simulated_s": 200.0,
                  "bytes_up": 1e6, "bytes_down": 1e6, "joule": 5.0,
                  "performance_gap": 0.1, "backward_transfer": 0.0, "perplexity": math.nan, "server_model_bytes": 9.0,
                  "target": 0.5, "rounds_to_target": own["seconds_to_target"] / 10,
                  "bytes_to_target": own["seconds_to_target"] * 1e4, "joule_to_target": own["seconds_to_target"] / 50,
                  "score_in_half_time": 0.3, "score_in_half_bytes": 0.3, "ssim": math.nan}
        | own | {"score": own["score"] + 0.01 * seed}
        for link in links for name, own in METHODS.items() for seed in seeds
    ]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.fixture
def folder(tmp_path):
    table().to_csv(tmp_path / BENCHMARK, index=False)
    return tmp_path


def test_each_method_stands_beside_the_reference_with_what_it_spares(folder):
    rows = read(benchmark.beside_reference(benchmark.load_compared(folder)))
    assert [cell[0] for cell in rows["splitfed_v1"].values()] == ["0.0", "1.00×", "1.00×", "1.00×", ""]
    assert rows["quick"]["Accuracy (points)"] == ("−2.0", "−2.0 to −2.0")
    assert [cell[0] for cell in rows["quick"].values()][1:4] == ["0.50×", "0.40×", "0.40×"]
    assert [cell[0] for cell in rows["never"].values()][1:4] == ["0.25×", "–", "–"]
    assert "gradient" in rows["quick"]["What it is like"][0]
    assert "backward" in rows["never"]["What it is like"][0]


@pytest.mark.parametrize(
    ("number", "first", "medians"),
    [(0, "splitfed_v1", {"splitfed_v1": 0.62, "quick": 0.60, "never": 0.22}),
     (1, "quick", {"splitfed_v1": 100.0, "quick": 40.0, "never": math.inf}),
     (2, "quick", {"splitfed_v1": 1e6, "quick": 4e5, "never": math.inf})],
)  # fmt: skip
def test_headlines_name_the_best_and_who_is_late(folder, number, first, medians):
    sentence = benchmark.headlines(benchmark.load_compared(folder))[number]
    assert sentence.facts["first"] == [first]
    assert sentence.facts["medians"] == pytest.approx(medians)
    assert sentence.facts["late"] == ({"never": (0, 3)} if number else {})
    assert sentence.facts["ahead"] == sentence.facts["seeds"] == 3


def test_methods_whose_mean_ranks_overlap_are_not_told_apart(tmp_path):
    """Ranks of 1, 2 and 1: 1.33 ± 4.30 · 0.58 / √3 = 1.43, within which lies the other's mean of 1.67."""
    rows = table(links=(OWN_LINKS,))
    rows.loc[rows["variant"] == "quick", "score"] = [0.7, 0.6, 0.7]
    rows.to_csv(tmp_path / BENCHMARK, index=False)
    first = benchmark.headlines(benchmark.load_compared(tmp_path))[0]
    assert (first.facts["first"], first.facts["not told apart"]) == ([], ["quick", "splitfed_v1"])
    assert "70.0\u00a0%" in first.text
    assert "never" not in first.text


def test_three_equal_methods_crown_nobody(tmp_path):
    rows = table(links=(OWN_LINKS,)).assign(score=0.5)
    rows.to_csv(tmp_path / BENCHMARK, index=False)
    accuracy = benchmark.headlines(benchmark.load_compared(tmp_path))[0]
    assert "best" not in accuracy.text


def test_tables_are_headed_by_these_words(folder):
    shown = [table for panel in benchmark.panels(benchmark.load_compared(folder)) for table in panel.tables]
    assert [list(table.titles) for table in shown] == [
        ["Variant", "Accuracy", "Rank", "Time to target", "Rank", "Bytes to target", "Rank", "Energy to target",
         "Rounds to target", "Client memory", "In half the time", "With half the bytes", "PG (points)", "BW (points)",
         "All rounds", "Sent up", "Sent down", "Server memory", "Learning rate"],
        ["Variant", "The scenario's links", "wifi"],
        ["Variant", "Accuracy (points)", "Client memory", "Time to target", "Bytes to target", "What it is like"],
    ]  # fmt: skip


def test_a_method_that_misses_the_target_says_so_and_is_no_candidate(folder):
    found = benchmark.load_compared(folder)
    shown = benchmark.table(found, benchmark.columns(found))
    place = list(shown.titles).index("Time to target")
    late = shown.rows[2][place]
    assert (late.text, late.below, late.order) == ("not reached", "0 of 3 seeds", "Infinity")
    assert shown.best[place] == "40 s".replace(" ", "\u00a0")
    assert "Leakage (SSIM)" not in shown.titles, "it was not measured"


def test_times_on_links_on_which_another_thing_might_be_learned_are_marked(folder):
    found = benchmark.load_compared(folder)
    rows = {row[0].text: row for row in benchmark.on_links(found, ["wifi"]).rows}
    assert rows["quick"][2].text.startswith("~ ")
    assert not rows["splitfed_v1"][2].text.startswith("~")


def test_the_page_sorts_and_can_be_opened_offline(folder):
    page = benchmark.write_benchmark(folder, folder / "benchmark.html").read_text()
    assert 'data-order="40.0"' in page
    assert 'data-order="Infinity"' in page
    assert '<script src="http' not in page


def test_names_are_escaped(tmp_path):
    rows = table(links=(OWN_LINKS,)).replace({"variant": {"quick": "<b>quick</b>"}})
    rows.to_csv(tmp_path / BENCHMARK, index=False)
    assert "<b>quick</b></th>" not in benchmark.write_benchmark(tmp_path, tmp_path / "page.html").read_text()


def test_a_folder_without_a_table_is_refused(tmp_path):
    with pytest.raises(ScenarioError) as raised:
        benchmark.load_compared(tmp_path)
    assert (raised.value.key, raised.value.found) == ("folder", str(tmp_path))


def test_a_method_of_one_s_own_has_its_name_in_the_figures_wherever_it_stands(tmp_path):
    """`quick` is on the front of memory alone, and `never` nowhere but there."""
    rows = table(links=(OWN_LINKS,)).assign(is_own=lambda rows: rows["variant"] == "quick")
    rows.to_csv(tmp_path / BENCHMARK, index=False)
    figure = benchmark.fronts(benchmark.load_compared(tmp_path))[0][1]()
    texts = {name: text for trace in figure.data for name, text in zip(trace.hovertext, trace.text, strict=True)}
    assert texts == {"splitfed_v1": "splitfed_v1", "quick": "quick", "never": ""}
