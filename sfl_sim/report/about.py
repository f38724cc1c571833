"""The top of pages: what was simulated, and what a reader must know before believing the rest."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sfl_sim.metrics.scores import score_of
from sfl_sim.report.display import plural
from sfl_sim.report.frames import Frames, titles
from sfl_sim.report.load import Run
from sfl_sim.scenario.own_code import object_name
from sfl_sim.store.folder import changed_files

# What was simulated

CHOICES = ("kind", "by", "profile", "name")
"""Keys of a section whose value says most: it needs no key beside it."""
MAX_VALUES = 3
UNLESS_ONE = ("clients.participation", "clients.compute.scale", "clients.network.scale", "train.local_epochs")
SETUP = {
    "data": {"data.name": "{}", "data.factory": "{}", "data.partition": "{}"},
    "model": {"model.name": "{}", "model.factory": "{}", "model.cut": "cut {}"},
    "clients": {
        "clients.count": "{}", "clients.participation": "a share of {} in each round",
        "clients.compute.profile": "devices {}", "clients.compute.macs_per_s": "devices {} MAC/s",
        "clients.compute.scale": "their speed × {}", "clients.network.profile": "links {}",
        "clients.network.uplink_bps": "uplinks {} bit/s", "clients.network.scale": "their rates × {}",
        "clients.network.trace": "trace {}", "clients.availability.profile": "availability {}",
    },
    "server": {"server.workers": "workers {}", "server.speedup": "compute ratio {}",
               "server.macs_per_s": "{} MAC/s", "server.order": "order {}"},
    "training": {"train.rounds": "{} rounds", "train.batch_size": "mini-batches of {}",
                 "train.local_epochs": "{} local epochs", "train.lr": "learning rate {}"},
    "requests": {"serving.requests": "{}", "serving.arrivals.kind": "arrivals {}",
                 "serving.threshold.kind": "threshold {}", "serving.batch.max_size": "batches of at most {}",
                 "serving.service.kind": "service times {}"},
}  # fmt: skip
"""What is said of each part: a key, or a section, and the words around its value."""
OF_A_TIER = re.compile(r"servers\.[^.]+\.count")
"""Keys of the numbers of servers between clients and the main one."""


def setup_in_words(settings: Sequence[Mapping[str, Any]], n_clients: Iterable[int] = (), served: bool = False) -> str:
    """Say which data, model, clients and server were simulated, and for how long.

    Args:
        settings: of each variant, flat, by dotted key; where variants differ, up to three values are named.
        n_clients: the number of clients of each variant, where the scenario leaves it to the data.
        served: whether the trained model answered requests.
    """
    if counts := dict.fromkeys(n_clients):
        settings = [{**own, "clients.count": "/".join(map(str, counts))} for own in settings]

    def said(key: str, text: str) -> str:
        """Say the values of a key; nothing if it has none."""
        texts = dict.fromkeys(_text(own, key) for own in settings)
        if not any(texts):
            return ""
        usual = "1" if key in UNLESS_ONE else "none"
        known = "several values" if len(texts) > MAX_VALUES else "/".join(each or usual for each in texts)
        return text.format(known)

    told = {part: ", ".join(filter(None, map(said, keys, keys.values()))) for part, keys in SETUP.items()}
    tiers = dict.fromkeys(key for own in settings for key in own if OF_A_TIER.fullmatch(key))
    behind = ", ".join(said(key, f"{{}} {key.split('.')[1]} servers") for key in tiers)
    told["server"] += f", behind {behind}" if behind else ""
    line = "; ".join(f"{part}: {words}" for part, words in told.items() if words and (served or part != "requests"))
    return line[:1].upper() + line[1:]


def _text(settings: Mapping[str, Any], key: str) -> str:
    """The value of a key, or all values of a section, as text; empty if there is none, or none worth telling."""
    value = settings.get(key)
    if isinstance(value, list) and value and all(isinstance(one, int | float) for one in value):
        low, high = (f"{edge:g}" for edge in (min(value), max(value)))
        return low if low == high else f"{low} to {high}"
    if value is not None:
        return (
            ""
            if value == 1 and key in UNLESS_ONE
            else f"{value:g}"
            if isinstance(value, float)
            else object_name(str(value))
        )
    section = {name.removeprefix(f"{key}."): each for name, each in settings.items() if name.startswith(f"{key}.")}
    known = {name: each for name, each in section.items() if each is not None}
    return " ".join(f"{each}" if name in CHOICES else f"{name}={each}" for name, each in known.items())


# Warnings

MAX_ALIKE = 5
ADAPTIVE = ("window_ratio", "clp", "printed")
"""Rules of KoReA-SFL by which the proportion of replay follows the gradient norm."""


def warnings(frames: Frames) -> list[str]:
    """The sentences on all runs, each once, with the names of its runs before it."""
    told: dict[str, list[str]] = {}
    for run, title in zip(frames.runs, titles(frames.runs), strict=True):
        for text in _warnings(run):
            told.setdefault(text, []).append(title or run.name)
    return [f"{', '.join(names)}: {text}" for text, names in told.items()]


def _warnings(run: Run) -> list[str]:
    texts = [*_repriced(run), *_unfinished(run)]
    if changed := changed_files(run.folder):
        texts.append(f"{', '.join(changed)} is not what the run has written, by its SHA256SUMS: figures may be wrong.")
    texts += _first(run.manifest.get("notes") or [], "more notes; manifest.json has all.")
    score = score_of(run.rounds)
    texts += _first(_stopped(run), "more stopped early; summary.json says why.")
    diverged = run.rounds[run.rounds[score].notna() & ~np.isfinite(run.rounds["loss"].astype(float))]
    found = [
        f"{variant} with seed {seed} diverged in round {rounds['round'].min()}: its loss is no longer a "
        "number. A smaller learning rate may help."
        for (variant, seed), rounds in diverged.groupby(["variant", "seed"], sort=False)
    ]
    texts += _first(found, "more diverged; rounds.parquet has the losses of all.")
    skipped = run.rounds[run.rounds["skipped"] > 0]
    found = [
        f"{variant} with seed {seed} left out {plural(rounds['skipped'].sum(), 'update')} with gradients that were "
        f"no finite numbers, the first in round {rounds['round'].min()} (train.on_nan: skip); a smaller learning "
        "rate may help."
        for (variant, seed), rounds in skipped.groupby(["variant", "seed"], sort=False)
    ]
    texts += _first(found, "more left out updates; rounds.parquet has their numbers.")
    if run.rounds[score].isna().all() and "repriced_from" not in run.manifest:
        texts.append(
            "timing-only. Nothing was trained, so there is no accuracy; time and bytes are those of a training run"
            f"{_replay_without_norm(run)}."
        )
    return texts


def _stopped(run: Run) -> list[str]:
    """Sentences on training that has ended before its last round, as the scenario asked."""
    return [
        f"{trial['variant']} with seed {trial['seed']} stopped after {plural(trial['rounds'], 'round')}: "
        f"{trial['stopped']}. Its accuracy and performance gap are those of its last round."
        for trial in run.summary.to_dict("records")
        if isinstance(trial["stopped"], str)
    ]


def _first(texts: list[str], more: str) -> list[str]:
    """Give the first `MAX_ALIKE` texts that say the same of different runs, and the number of those left out."""
    n_more = len(texts) - MAX_ALIKE
    return [*texts[:MAX_ALIKE], f"{n_more:,} {more}"] if n_more > 0 else texts


def _unfinished(run: Run) -> list[str]:
    """Sentences on what is missing of a run that was interrupted, and on variants that failed."""
    status, failed = run.manifest.get("status"), run.manifest.get("failed") or []
    texts = []
    if status != "complete" and not (status == "failed" and failed):
        planned = " or ".join(dict.fromkeys(str(own.get("train.rounds", "?")) for own in run.settings.values()))
        texts.append(
            f"{status} after round {run.rounds['round'].max()} of {planned}. What follows is what was stored "
            "until then; variants and seeds may have reached different rounds."
        )
    found = []
    for one in failed:
        mine = (run.rounds["variant"] == one["variant"]) & (run.rounds["seed"] == one["seed"])
        what = f"What follows has its first {plural(mine.sum(), 'round')}." if mine.any() else "It is not shown."
        found.append(f"{one['variant']} with seed {one['seed']} failed: {one['error']}. {what}")
    return texts + _first(found, "more failed; manifest.json lists them all.")


def _replay_without_norm(run: Run) -> str:
    """End of a sentence for KoReA-SFL: the norm that replay was to follow was never measured."""
    options = [one for one in run.summary["method_options"] if isinstance(one, dict)]
    p0 = {f"{one['p0']:g}" for one in options if one.get("proportion") in ADAPTIVE}
    if not p0:
        return ""
    return (
        f", except that the proportion of replay stays at p0 = {' or '.join(sorted(p0))}, since its rule "
        "reads a gradient norm that is known only after training"
    )


def _repriced(run: Run) -> list[str]:
    """Sentences on a run whose times are not of the system configuration in which it was trained."""
    source = run.manifest.get("repriced_from")
    if source is None:
        return []
    texts = [
        f"repriced from {source['folder']}. Times are those of the system configuration below, in which "
        "nothing was trained; accuracies are those of that run."
    ]
    for name in dict.fromkeys(verdict["variant"] for verdict in run.verdicts):
        doubts = [verdict for verdict in run.verdicts if verdict["variant"] == name and verdict["reason"] is not None]
        if doubts:
            more = f", and {plural(len(doubts) - 1, 'more seed')}" if doubts[1:] else ""
            texts.append(f"{name} (seed {doubts[0]['seed']}{more}) {_must_be_trained(doubts[0])}")
    return texts


def _must_be_trained(verdict: dict[str, Any]) -> str:
    if not verdict["rounds"]:
        return f"is left out: {verdict['reason']}."
    held = f" What it learned holds for {plural(verdict['valid_rounds'], 'round')}." if verdict["valid_rounds"] else ""
    return f"must be trained with this system configuration to know what it learns: {verdict['reason']}.{held}"
