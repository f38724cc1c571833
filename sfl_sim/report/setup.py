"""The line of a page that says what was simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
        known = "several values" if len(texts) > MAX_VALUES else "/".join(filter(None, texts))
        return text.format(known) if known else ""

    told = {part: ", ".join(filter(None, map(said, keys, keys.values()))) for part, keys in SETUP.items()}
    line = "; ".join(f"{part}: {words}" for part, words in told.items() if words and (served or part != "requests"))
    return line[:1].upper() + line[1:]


def _text(settings: Mapping[str, Any], key: str) -> str:
    """The value of a key, or all values of a section, as text; empty if there is none, or none worth telling."""
    value = settings.get(key)
    if value is not None:
        return "" if value == 1 and key in UNLESS_ONE else f"{value:g}" if isinstance(value, float) else str(value)
    section = {name.removeprefix(f"{key}."): each for name, each in settings.items() if name.startswith(f"{key}.")}
    known = {name: each for name, each in section.items() if each is not None}
    return " ".join(f"{each}" if name in CHOICES else f"{name}={each}" for name, each in known.items())
