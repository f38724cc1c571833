"""Random scenarios, and what must be the same in each, however it is computed.

A scenario is drawn from a seed: a method with options of its own, an order of service, devices, links that vary,
jitter, availability, codecs, partitions, optimizers. A check computes it in two ways that must agree to the bit, or as
far as rounding goes. A scenario that is refused must be refused in one line. `benchmarks/attack.py` draws as many
scenarios as one likes.
"""

import json
import math
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import sfl_sim
from sfl_sim.engine.experiment import Experiment
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.methods.cut_policies import CUT_POLICIES
from sfl_sim.runs.news import Ended, News
from sfl_sim.runs.trial import Settings
from sfl_sim.scenario.load import parse
from sfl_sim.scenario.sections import Scenario
from sfl_sim.sim.orders import ORDERS
from sfl_sim.store.columns import PARTS
from sfl_sim.studies.launch import TrialsFailed
from sfl_sim.studies.points import RoundFigures
from sfl_sim.studies.train import run_study
from sfl_sim.studies.walk import Walker

CPU = torch.device("cpu")
Values = dict[str, Any]


def drawn(rng: np.random.Generator) -> Values:
    """Draw a small scenario; it may be one that is refused."""

    def one(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    name = one(*METHODS)
    kind = METHODS[name]
    options = one(None, *kind.examples)
    n = int(rng.integers(1, 5))
    availability = one(
        None, None, None, {"profile": "flash", "begins_at_h": int(rng.integers(24)), "lost": one("wait", "drop")},
        {"lost": "deadline", "deadline_s": float(10.0 ** rng.integers(-1, 3))},
    )  # fmt: skip
    server: Values = {"speedup": float(10.0 ** rng.integers(-1, 3)), "workers": one(1, 2, "unlimited")}
    if kind.follows_order:
        server |= {"order": one(*ORDERS)}
    if server.get("order") == "bounded_wait":
        server["max_wait_s"] = 0.01
    changing = {"by": one("random", "round", *CUT_POLICIES), "values": [1, 2]}
    latency_s = one(0.0, 0.05, [0.01 * c for c in range(n)])
    return {
        "name": "attack",
        "seed": int(rng.integers(1000)),
        "data": {
            "name": "digits", "train_samples": int(rng.integers(10, 60)), "test_samples": 20,
            "partition": one({"kind": "iid"}, *({"kind": k, "min_size": 1} for k in ("dirichlet", "quantity_skew"))),
        },
        "model": {"name": one("cnn_small", "cnn_patches_bn"), "cut": one(1, 1, 2, 2, changing)},
        "clients": {
            "count": n,
            "participation": one(1.0, 0.6),
            "compute": {"scale": 1e-4, "jitter": one(0.0, 0.0, 0.3), "sample_s": one(0, 0.01)},
            "network": {"trace": one(None, None, "hsdpa_bus"), "latency_s": latency_s},
            "availability": availability,
            "power": one(None, {"compute_w": 2.0, "radio": "wifi"}),
        },
        "server": server,
        "train": {
            "rounds": int(rng.integers(1, 4)), "batch_size": one(4, 8), "local_epochs": one(1, 2),
            "weight_decay": one(0.0, 1e-3), "lr_decay": one(1.0, 0.9), "batches": one("epochs", "full"),
            "precision": "float64", **one({}, {"momentum": 0.9}, {"optimizer": "nag", "momentum": 0.9},
                                          {"optimizer": "adam", "lr": 1e-3}),
        },
        "method": {"name": name, **({} if options is None else options.model_dump(exclude_defaults=True))},
        "wire": one({}, {}, {"up": "fp16"}, {"up": "int8", "down": "fp16"}, {"update": "int8"}),
    }  # fmt: skip


def scenario_of(values: Values) -> Scenario:
    """Return the only variant of a scenario."""
    (variant,) = parse(values).variants
    return variant.scenario


def changed(values: Values, key: str, value: Any) -> Values:
    """Return the values with another one at a dotted key."""
    section, _, name = key.partition(".")
    return {**values, section: changed(values[section] or {}, name, value) if name else value}


def computed(values: Values, device: torch.device | None = CPU) -> tuple[Experiment, list[Values]]:
    """Run a scenario in memory; gives the experiment and its rows of rounds.parquet."""
    experiment = Experiment(scenario_of(values), device)
    return experiment, [dict(round.row) for round in experiment.rounds()]


def timing_only_is_trained(values: Values, _: Path) -> str | None:
    """The clock alone tells the timeline of training, unless it depends on what is learned."""
    trained, timed = (computed(values, device)[0] for device in (CPU, None))
    if "reads" in trained.histories():  # its flow depends on what is learned
        return None
    return None if trained.timeline_digest == timed.timeline_digest else "timing only has another timeline"


def twice_is_once(values: Values, _: Path) -> str | None:
    """Two runs are equal to the bit, also where another one lies between them."""
    one = computed(values)[0]
    computed({**values, "seed": values["seed"] + 1})
    other = computed(values)[0]
    same = (one.timeline_digest, one.weights_digest()) == (other.timeline_digest, other.weights_digest())
    return None if same else "a second run differs"


def twice_the_rates_is_half_the_time(values: Values, _: Path) -> str | None:
    """Where nothing has a time of its own, everything scales; to the rounding of sums."""
    for key, nothing in (("network.latency_s", 0.0), ("network.trace", None), ("compute.sample_s", 0),
                         ("availability", None)):  # fmt: skip
        values = changed(values, f"clients.{key}", nothing)
    timed = [key for key in values["method"] if key.endswith("_s")]
    values = {**values, "method": {key: value for key, value in values["method"].items() if key not in timed}}
    if "max_wait_s" in values["server"]:
        values = changed(changed(values, "server.order", "fcfs"), "server.max_wait_s", None)
    fast = changed(changed(values, "clients.compute.scale", 2e-4), "clients.network.scale", 2.0)
    slow_s, fast_s = (computed(each, None)[1][-1]["ended_s"] for each in (values, fast))
    return None if math.isclose(slow_s, 2 * fast_s, rel_tol=1e-9) else f"{slow_s} s against twice {fast_s} s"


def an_infinite_deadline_is_none(values: Values, _: Path) -> str | None:
    """A deadline that nobody misses changes nothing."""
    free = changed(values, "clients.availability", None)
    late = changed(values, "clients.availability", {"lost": "deadline", "deadline_s": 1e12})
    one, other = (computed(each)[0] for each in (free, late))
    return None if one.weights_digest() == other.weights_digest() else "a deadline far away changes what is learned"


def interrupted_is_whole(values: Values, place: Path) -> str | None:
    """A run that is interrupted after a round, and resumed, is the run that nobody interrupts."""
    at = 1 + values["seed"] % values["train"]["rounds"]

    def interrupt(news: News) -> None:
        if isinstance(news, Ended) and news.round.row["round"] == at:
            raise KeyboardInterrupt

    whole = _stored(values, place / "whole", lambda news: None)
    try:
        _stored(values, place / "part", interrupt)
    except KeyboardInterrupt:
        return None if at == 1 else "nothing is kept of an interrupted run"
    resumed = _stored(values, place / "part", lambda news: None, resume=True)
    differing = [key for key in whole if whole[key] != resumed[key]]
    return f"resumed after round {at} differs in {', '.join(differing)}" if differing else None


def repricing_is_a_fresh_run(values: Values, place: Path) -> str | None:
    """A recorded run walked in another system has the times of a run there, as far as it is known."""
    _stored(values, place / "run", lambda news: None)
    repriced = sfl_sim.reprice(place / "run", overrides=["clients.network.scale=0.5"], out=place / "there").rounds
    fresh = computed(changed(values, "clients.network.scale", 0.5))[1]  # trained: a flow may read what is learned
    found = repriced["ended_s"].tolist()
    expected = [row["ended_s"] for row in fresh[: len(found)]]
    return None if found == expected else f"repriced rounds end at {found}, fresh ones at {expected}"


def what_if_is_the_run(values: Values, _: Path) -> str | None:
    """A what-if's average round is simulated time over rounds, and its parts add up to that."""
    rows = computed(values, None)[1]
    scenario = scenario_of(values)
    found = RoundFigures(Walker(scenario).walk(scenario), len(rows)).figures(lambda _: 1.0)
    if not math.isclose(found["round_s"], rows[-1]["ended_s"] / len(rows), rel_tol=1e-9):
        return f"what-if says {found['round_s']} s a round, the run {rows[-1]['ended_s'] / len(rows)} s"
    parts_s = sum(found[f"{part}_s"] for part in PARTS)
    return None if math.isclose(parts_s, found["round_s"], rel_tol=1e-6) else "parts do not add up to the round"


CHECKS: list[Callable[[Values, Path], str | None]] = [
    timing_only_is_trained, twice_is_once, twice_the_rates_is_half_the_time,
    an_infinite_deadline_is_none, interrupted_is_whole, repricing_is_a_fresh_run, what_if_is_the_run,
]  # fmt: skip
NO_IDENTITY = {"name", "key", "threads"}


def _stored(values: Values, out: Path, notify: Callable[[News], None], resume: bool = False) -> Values:
    """Run a scenario into a folder; gives what must be equal of its summary.

    Raises KeyboardInterrupt if nothing is kept of it.
    """
    settings = Settings(device="cpu", threads=1, resume=resume)
    folder = run_study(parse(values), out, settings, notify).folder
    (summary,) = json.loads((folder / "summary.json").read_text())["variants"]
    return {key: value for key, value in summary.items() if key not in NO_IDENTITY}


@contextmanager
def without_pages() -> Iterator[None]:
    """Leave out pages, which take most of the time of small runs."""
    with patch("sfl_sim.report.pages.run.write_report", lambda runs, out, parts=None: out):
        yield


def verdict(check: Callable[[Values, Path], str | None], seed: int) -> str | None:
    """Draw a scenario and check it; gives `holds`, `refused`, or what is wrong."""
    values = drawn(np.random.default_rng(seed))
    with tempfile.TemporaryDirectory() as place, without_pages():
        try:
            return check(values, Path(place)) or "holds"
        except ScenarioError as error:
            return "refused" if "\n" not in str(error) else f"refused in several lines: {error}"
        except TrialsFailed as error:
            return f"fails: {error}"
        except Exception:
            return traceback.format_exc()
