"""The studies' verdicts know their scenarios' variants, and would call the papers' own figures reproduced."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from research.forgetting import verdicts as forgetting
from research.leakage import verdicts as leakage
from research.lora import verdicts as lora
from research.momentum import ratios
from research.momentum import verdicts as momentum
from research.replay import verdicts as replay
from research.trends import FIRST_NEW_SEED
from research.wire import verdicts as wire
from sfl_sim.scenario.load import load

SCENARIOS = Path(__file__).parents[2] / "scenarios"
PAPER = {  # SMoFi's Tables 1 and 2: accuracy, R and T; T is known of the split frameworks alone
    "splitfed_v1, round": (77.16, 258, 107), "fedavgm": (79.19, 190, 79), "slowmo": (76.54, 177, 73),
    "fednag": (78.24, 170, 71), "fedprox": (77.38, 167, 69),
    "smofi": (81.82, 56, 29.0), "smofi, fedavg": (81.82, 56, 29.0), "smofi, fedprox": (81.99, 54, 28),
    "smofi, fednar": (81.65, 46, 24), "fednar": (77.21, 255, 106),
    "splitfed_v1, step": (68.10, None, None), "splitfed_v1, epoch": (77.84, 69, 28.6),
    "splitfed_v2, random_sweep": (79.42, 278, 144.5), "mergesfl, mean": (79.47, 76, 15.8),
}  # fmt: skip
TREND = {  # orders without figures of the paper
    "fusion=false": 79.5, "server_momentum=0.0": 80, "staleness=-0.1": 81.8, "staleness=0.0": 81,
    "staleness=-10.0": 81.5, "carry_fused=true": 81.5, "splitfed_v2, random_client": 79, "conv2": 80, "fc1": 79,
    "block2": 80, "block3": 79,
}  # fmt: skip
KOREA = {  # KoReA-SFL's Table 2, ResNet-18 on CIFAR-10: adaptive, fixed, no replay; and of Table 1, SFL
    "alpha=0.1": (66.7, 65.9, 56.0, 45.1), "alpha=0.3": (68.8, 68.2, 66.6, 60.1),
    "alpha=0.5": (70.6, 70.5, 69.2, 63.0), "iid": (73.2, 73.1, 69.7, 64.5),
    "participation=0.05": (62, 0, 0, 42), "participation=0.2": (67, 0, 0, 50), "participation=0.5": (68, 0, 0, 53),
}  # fmt: skip
KOREA_TREND = {  # orders without figures of the paper
    "p0=0.1": 63, "p0=0.3": 66.8, "p0=0.5": 67, "conv1": 66, "conv2": 65, "fc1": 61
}  # fmt: skip
HOURS = dict(zip(ratios.ORDER, ratios.PAPER["CIFAR-10"], strict=True))


def write(reports, scenario, figures, first_seed=FIRST_NEW_SEED):
    """A run of a shipped scenario, of twice as many seeds, with the figures of each variant's name, a little apart."""
    study = load(SCENARIOS / f"{scenario}.yaml")
    folder = reports / study.name
    folder.mkdir()
    rng = np.random.default_rng(0)
    cells = [
        (v.name, first_seed + 2 * (v.scenario.seed - study.base.seed) + k, 1 + 1e-4 * rng.normal())
        for v in study.variants
        for k in (0, 1)
    ]
    rows = [
        {"name": name, "seed": seed} | {key: None if x is None else x * apart for key, x in figures(name).items()}
        for name, seed, apart in cells
    ]
    (folder / "manifest.json").write_text('{"status": "complete"}')
    (folder / "summary.json").write_text(json.dumps({"variants": rows}))
    return folder, cells


def learned(name):
    best, rounds, hours = PAPER.get(name) or (TREND[name], None, None)
    time_s = hours and 3600 * hours
    return {"best_accuracy": best / 100, "rounds_to_accuracy": rounds, "time_to_accuracy_s": time_s}


def told(main, reports, capsys, monkeypatch):
    """The printed verdict of each trend."""
    monkeypatch.setattr(sys, "argv", ["verdicts", str(reports)])
    main()
    return dict(
        re.findall(r"^\| (.*?) \| (reproduced|refuted|undecided)(?:, [^|]*)? \|", capsys.readouterr().out, re.M)
    )


def test_smofis_own_figures_are_reproduced(tmp_path, capsys, monkeypatch):
    for scenario in ("table", "plugins", "ablation", "staleness", "cuts"):
        write(tmp_path, f"momentum/{scenario}", learned)
    found = told(momentum.main, tmp_path, capsys, monkeypatch)
    assert {name[:3] for name in found} == {f"({letter})" for letter in "abcdefghi"}
    assert set(found.values()) == {"reproduced"}


def test_without_a_margin_that_was_fixed_before_the_runs_a_tie_is_not_decided(tmp_path, capsys, monkeypatch):
    write(tmp_path, "momentum/table", learned, first_seed=0)
    found = told(momentum.main, tmp_path, capsys, monkeypatch)
    assert {name[:3] for name, verdict in found.items() if verdict == "undecided"} == {"(e)"}


def test_a_smofi_that_is_no_better_is_told(tmp_path, capsys, monkeypatch):
    for name in ("smofi", "smofi, fedavg"):
        monkeypatch.setitem(PAPER, name, (77.16, 258, 107))
    for scenario in ("table", "plugins", "ablation", "staleness", "cuts"):
        write(tmp_path, f"momentum/{scenario}", learned)
    found = told(momentum.main, tmp_path, capsys, monkeypatch)
    reproduced = {name[:3] for name, verdict in found.items() if verdict == "reproduced"}
    assert reproduced == {"(d)", "(f)", "(h)"}  # of (h), the weights of staleness, which have a study of their own


def test_the_papers_own_hours_are_in_its_order(tmp_path, capsys, monkeypatch):
    called = {name: called for called, name in ratios.NAMES.items()}

    def hours(name):
        framework = called[re.sub("^n_labels=100?, ", "", name)]
        return {"simulated_s": 50 * 3600 * HOURS.get(framework, 0.5), "rounds": 50}

    for scenario in ("hours", "hours_tiny"):
        write(tmp_path, f"momentum/{scenario}", hours)
    found = told(ratios.main, tmp_path, capsys, monkeypatch)
    assert len(found) == 3
    assert set(found.values()) == {"reproduced"}


def test_every_trend_of_hydra_finds_its_variants(tmp_path, capsys, monkeypatch):
    figures = dict.fromkeys(["accuracy", "performance_gap", "backward_transfer"], 0.5)
    for scenario in {name for _, names in forgetting.TRENDS for name in names}:
        folder, cells = write(tmp_path, f"forgetting/{scenario}", lambda name: figures)
        places = [
            {"variant": name, "seed": seed, "round": 20, "position": position, "accuracy": apart * np.sqrt(position)}
            for name, seed, apart in cells
            for position in range(10)
        ]
        pd.DataFrame(places).to_parquet(folder / "labels.parquet")
    found = told(forgetting.main, tmp_path, capsys, monkeypatch)
    assert {name[:3] for name in found} == {f"({letter})" for letter in "abcdefghi"}
    for where in ("", ", batches of 64", ", MobileNetV1"):
        assert found[f"(a) the last place is known best (V2{where})"] == "reproduced"


def replayed(name):
    accuracy, is_sfl = KOREA_TREND.get(name.removeprefix("cnn_patches, ")), name.endswith("splitfed_v1")
    if accuracy is None:
        setting = next((setting for setting in KOREA if f".{setting}," in f".{name}"), "alpha=0.1")
        rules = ("window_ratio", "fixed", "off", "splitfed_v1")
        accuracy = KOREA[setting][next(i for i, rule in enumerate(rules) if rule in name)]
    steady, way = (0.04, 3e9) if is_sfl else (0.01, 2e9)
    return {"accuracy": accuracy / 100, "accuracy_spread": steady, "bytes_to_accuracy": way, "time_to_accuracy_s": way}


def judged(reports, capsys, monkeypatch):
    for scenario in {name for _, names in replay.TRENDS for name in names}:
        write(reports, f"replay/{scenario}", replayed)
    return told(replay.main, reports, capsys, monkeypatch)


def test_koreas_own_figures_are_reproduced(tmp_path, capsys, monkeypatch):
    found = judged(tmp_path, capsys, monkeypatch)
    assert {name[:3] for name in found} == {f"({letter})" for letter in "abcdefghijk"}
    assert set(found.values()) == {"reproduced"}


def test_a_korea_that_is_no_better_is_told(tmp_path, capsys, monkeypatch):
    for setting, (_, fixed, off, sfl) in list(KOREA.items()):
        monkeypatch.setitem(KOREA, setting, (sfl, fixed, off, sfl))
    found = judged(tmp_path, capsys, monkeypatch)
    reproduced = {name[:3] for name, verdict in found.items() if verdict == "reproduced"}
    assert reproduced == {"(c)", "(e)", "(f)", "(g)", "(i)", "(j)"}  # smoothness, the way, and what is fixed


def test_codecs_that_do_what_their_papers_say_are_told(tmp_path, capsys, monkeypatch):
    def coded(name):
        ahead = 0.05 * ("randtopk" in name) - 0.05 * ("topk" in name)
        return {
            "accuracy": 0.7 + ahead,
            "time_to_accuracy_s": 600 if "," in name.removesuffix(", target_accuracy=0.3") else 900,
        }

    for scenario in ("fashion", "cifar10"):
        write(tmp_path, f"wire/{scenario}", coded)
    write(
        tmp_path, "wire/cuts", lambda name: {"time_to_accuracy_s": 600 if "int8" in name and "fc" not in name else 900}
    )
    found = told(wire.main, tmp_path, capsys, monkeypatch)
    pays = {name[-5:] for name, verdict in found.items() if name.startswith("(e)") and verdict == "reproduced"}
    assert pays == {"conv1", "conv2"}
    assert all(verdict == "reproduced" for name, verdict in found.items() if not name.startswith("(e)"))


def test_a_codec_that_loses_accuracy_is_not_said_to_lose_none(tmp_path, capsys, monkeypatch):
    def lossy(name):
        return {"accuracy": 0.6 if "int8" in name else 0.9 if "splitfc" in name else 0.8, "time_to_accuracy_s": 600}

    write(tmp_path, "wire/fashion", lossy)
    found = told(wire.main, tmp_path, capsys, monkeypatch)
    assert [verdict for name, verdict in found.items() if name.startswith("(a)")] == ["refuted"]
    assert [verdict for name, verdict in found.items() if name.startswith("(c)")] == ["reproduced"]


def test_what_leaks_less_with_depth_and_defences_is_told(tmp_path, capsys, monkeypatch):
    def figures(name):
        return {"accuracy": 0.7, "simulated_s": 9000 - 1000 * leakage.CUTS.index(name.partition(",")[0])}

    def value(name, metric):
        depth = next((place for place, cut in enumerate(leakage.CUTS) if name.startswith(cut)), 0)
        defended = "," in name and not name.startswith("splitfed")
        return 0.95 - 0.1 * depth - 0.2 * defended - 0.1 * (metric != "ssim")

    for scenario, of in (("leakage/cuts", figures), ("leakage/forgetting", lambda name: {})):
        folder, cells = write(tmp_path, scenario, of)
        attacks = [each.split() for each in (leakage.DRAWN, leakage.LABELS, leakage.DEPENDENCE)]
        rows = [
            {"variant": name, "seed": seed, "round": round, "cut": 1, "attack": attack, "client": client,
             "metric": metric, "value": apart * value(name, metric) if (round, client) == (20, -1) else 0.0}
            for name, seed, apart in cells for attack, metric in attacks for round in (5, 20) for client in (-1, 3)
        ]  # fmt: skip
        pd.DataFrame(rows).to_parquet(folder / "leakage.parquet")
    found = told(leakage.main, tmp_path, capsys, monkeypatch)
    assert {name[:3] for name in found} == {f"({letter})" for letter in "abcdefgh"}
    assert set(found.values()) == {"reproduced"}


def tuned(name):
    """Figures as the papers' claims have them: adapters are as good, in less time, and forget less."""
    rank = next((rank for rank in (2, 8, 16) if f"rank={rank}," in name), 4)
    is_full, is_frozen = "rank" not in name, "splitfrozen" in name
    better = 0.2 * ("concat" in name or "svd" in name) + 0.1 * (rank.bit_length() - 3)
    return {
        "perplexity": 5 - better,
        "simulated_s": 3600 * (3 if is_full else 1 if is_frozen else 2),
        "performance_gap": 0.06 if is_full else 0.03,
    }


def test_adapters_that_do_what_their_papers_say_are_told(tmp_path, capsys, monkeypatch):
    write(tmp_path, "lora/roles", tuned)
    found = told(lora.main, tmp_path, capsys, monkeypatch)
    assert {name[:3] for name in found} == {f"({letter})" for letter in "abcdefgh"}
    assert set(found.values()) == {"reproduced"}


def test_adapters_that_learn_less_are_told(tmp_path, capsys, monkeypatch):
    write(tmp_path, "lora/roles", lambda name: tuned(name) | {"perplexity": 5 if name in ("fcfs", "cyclic") else 6})
    found = told(lora.main, tmp_path, capsys, monkeypatch)
    assert next(verdict for name, verdict in found.items() if name.startswith("(a)")) == "refuted"
