"""The line of a page that says what was simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

CHOICES = ("kind", "by", "profile", "name")
"""Keys of a section whose value says most: it needs no key beside it."""
MAX_VALUES = 3


def setup_in_words(
    settings: Sequence[Mapping[str, Any]], n_clients: Iterable[int] = (), with_requests: bool = False
) -> str:
    """Say which data, model, clients and server were simulated, and for how long.

    Args:
        settings: of each variant, flat, by dotted key; where variants differ, up to three values are named.
        n_clients: the number of clients of each variant, where the scenario leaves it to the data.
        with_requests: whether the trained model was served.
    """

    def said(*keys: str, text: str = "{}", usual: object = None) -> str:
        """Say the value of the first of these keys that has one; nothing if it is the usual one."""
        texts = dict.fromkeys(next(filter(None, (_text(one, key, usual) for key in keys)), "") for one in settings)
        known = "several values" if len(texts) > MAX_VALUES else "/".join(filter(None, texts))
        return text.format(known) if known else ""

    numbers = "/".join(f"{number:,}" for number in dict.fromkeys(n_clients))
    parts = {
        "data": [said("data.name", "data.factory"), said("data.partition")],
        "model": [said("model.name", "model.factory"), said("model.cut", text="cut {}")],
        "clients": [
            numbers or said("clients.count"),
            said("clients.participation", text="a share of {} in each round", usual=1.0),
            said("clients.compute.profile", "clients.compute.macs_per_s", text="devices {}"),
            said("clients.compute.scale", text="their speed × {}", usual=1.0),
            said("clients.network.profile", "clients.network.uplink_bps", text="links {}"),
            said("clients.network.scale", text="their rates × {}", usual=1.0),
            said("clients.network.trace", text="trace {}"),
            said("clients.availability.profile", text="availability {}"),
        ],
        "server": [
            said("server.workers", text="workers {}"),
            said("server.speedup", text="compute ratio {}"),
            said("server.order", text="order {}"),
        ],
        "training": [
            said("train.rounds", text="{} rounds"),
            said("train.batch_size", text="mini-batches of {}"),
            said("train.local_epochs", text="{} local epochs", usual=1),
            said("train.lr", text="learning rate {}"),
        ],
        "requests": [
            said("serving.requests"),
            said("serving.arrivals.kind", text="arrivals {}"),
            said("serving.threshold.kind", text="threshold {}"),
            said("serving.batch.max_size", text="batches of at most {}"),
        ]
        if with_requests
        else [],
    }
    told = {name: ", ".join(filter(None, words)) for name, words in parts.items()}
    line = "; ".join(f"{name}: {words}" for name, words in told.items() if words)
    return line[:1].upper() + line[1:]


def _text(settings: Mapping[str, Any], key: str, usual: object) -> str:
    """The value of a key, or all values of a section, as text; empty if there is none, or the usual one."""
    value = settings.get(key)
    if value is not None:
        return "" if value == usual else f"{value:g}" if isinstance(value, float) else str(value)
    section = {name.removeprefix(f"{key}."): each for name, each in settings.items() if name.startswith(f"{key}.")}
    words = [f"{each}" if name in CHOICES else f"{name}={each}" for name, each in section.items() if each is not None]
    return " ".join(words)
