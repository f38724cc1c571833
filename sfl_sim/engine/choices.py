"""Choices of clients: they say who takes part in a round.

A choice is a function `(candidates, *, options) -> clients`, which gives `candidates.n` of `candidates.clients`. What
it draws comes from `candidates.rng`. If its second parameter is named `utility`, it also gets what only training can
tell: an array (C,) with each client's utility after the last round in which it took part, NaN for a client that never
has. To add a choice, write it and enter it in `CHOICES`, or name it in the scenario as
`clients: {choice: "my_package.my_module:my_choice"}`. A complete example, the fastest clients:

    >>> def fastest(candidates):
    ...     return sorted(candidates.clients, key=candidates.expected_s)[: candidates.n]
    >>> fastest(Candidates(clients=[2, 0, 1], n=2, expected_s=[3.0, 1.0, 2.0].__getitem__))
    [1, 2]
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from sfl_sim.build.registry import filled, named
from sfl_sim.errors import ScenarioError, calling_theirs
from sfl_sim.knowledge import Known, knows
from sfl_sim.ops import Step
from sfl_sim.scenario.fields import Count, Positive, PositiveShare, Probability
from sfl_sim.scenario.sections import ChoiceSection as ChoiceSection

Floats = NDArray[np.float64]
KEY = "clients.choice"
CLIP_AT = 0.95
"""Share of the utilities up to which oort tells them apart."""
LEAST_RANGE = 1e-4
"""Range of utilities that are all alike."""


@dataclass
class Candidates:
    """What a choice may use.

    Attributes:
        clients: those that are present, in cyclic order.
        n: number of clients that shall take part; fewer than `clients`.
        expected_s: gives an estimate of the seconds that a client needs for its samples in a round.
        round: number of the round, from 1.
        rng: the round's own random stream.
        took_s: (C,) seconds from the start of the round to the client's last operation in it, in the last round in
            which the client took part and was not lost; NaN if there is none.
        last_round: (C,) number of that round; 0 if there is none.
        gains: sum of the utilities of the participants of each round before this one.
        is_new: (C,) True for clients that have never been asked.
    """

    clients: Sequence[int]
    n: int
    expected_s: Callable[[int], float]
    round: int = 1
    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    took_s: Floats = field(default_factory=lambda: np.empty(0))
    last_round: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    gains: Sequence[float] = ()
    is_new: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, dtype=np.bool_))


ClientChoice = Callable[..., Sequence[int]]


def random(candidates: Candidates) -> Sequence[int]:
    """Draw without replacement, all equally likely."""
    return _drawn(candidates.rng, candidates.clients, candidates.n)


@knows(Known.RATES, Known.ROUNDS)
def tiers(
    candidates: Candidates, *, tiers: Count = 5, by: Literal["expected", "observed"] = "expected"
) -> Sequence[int]:
    """Draw one of so many tiers of clients that are about equally fast, then its clients (TiFL, Chai et al. 2020).

    Every tier is equally likely, as in TiFL's policy `uniform`. There are fewer if one would have too few clients. By
    observed seconds, clients that have never been asked come first, as TiFL profiles them; then the seconds of each
    client's last round count. Who has been lost in every round is among the slowest.
    """
    seconds = candidates.expected_s
    if by == "observed":
        new = [client for client in candidates.clients if candidates.is_new[client]]
        if len(new) >= candidates.n:
            return _drawn(candidates.rng, new, candidates.n)
        if new:
            others = [client for client in candidates.clients if client not in new]
            return [*new, *_drawn(candidates.rng, others, candidates.n - len(new))]
        seconds = np.nan_to_num(candidates.took_s, nan=np.inf).__getitem__
    ranked = sorted(candidates.clients, key=seconds)
    of_speed = np.array_split(ranked, max(1, min(tiers, len(ranked) // candidates.n)))
    tier = of_speed[candidates.rng.integers(len(of_speed))].tolist()
    return _drawn(candidates.rng, tier, candidates.n)


@knows(Known.LOSSES, Known.ROUNDS, Known.RATES)
def oort(
    candidates: Candidates,
    utility: Floats,
    *,
    exploration: Probability = 0.9,
    exploration_decay: PositiveShare = 0.98,
    exploration_min: Probability = 0.2,
    penalty: Annotated[float, Field(ge=0, le=100)] = 2.0,
    preferred_quantile: PositiveShare = 0.3,
    pace_rounds: Count = 20,
    pace: Positive = 0.05,
    cut_off: PositiveShare = 0.95,
) -> Sequence[int]:
    """Prefer clients that learn much in little time, and try others (Oort, Lai et al. 2021, Algorithm 1).

    Utilities are clipped at a quantile and scaled to 1; to them comes a bonus, the larger the longer ago a client took
    part. The worth of a client that took longer than a preferred duration is lowered by (preferred / taken)^penalty.
    The share of clients that are new falls from `exploration` to `exploration_min`; fast ones are the likelier. The
    preferred duration is a quantile of those seen, as in the authors' code. It is raised by `pace` whenever the
    utilities of the last `pace_rounds` rounds add up to less than those of the rounds before.
    """
    rng, n, took_s = candidates.rng, candidates.n, candidates.took_s
    clients = np.array(candidates.clients)
    is_known = np.isfinite(utility[clients])
    known, new = clients[is_known], clients[~is_known]
    share = max(exploration_min, exploration * exploration_decay ** (candidates.round - 1))
    n_known = min(len(known), n - min(len(new), round(share * n)))
    chosen: list[int] = []
    if n_known:
        quantile = min(1.0, preferred_quantile + pace * _raises(candidates.gains, pace_rounds))
        preferred_s = np.nanquantile(took_s, quantile)
        worth = scaled(utility[known]) + np.sqrt(0.1 * np.log(candidates.round) / candidates.last_round[known])
        worth *= np.minimum(1.0, preferred_s / took_s[known]) ** penalty
        least = cut_off * np.sort(worth)[-n_known]
        good = worth >= least
        chosen += _by_weight(rng, known[good], worth[good], n_known)
    if n > n_known:
        speeds = np.array([1 / candidates.expected_s(c) for c in new.tolist()])
        chosen += _by_weight(rng, new, speeds, n - n_known)
    return chosen


def scaled(utility: Floats) -> Floats:
    """Clip utilities (n,) at their quantile `CLIP_AT`, and bring them to [0, 1], as the authors' code does."""
    ranked = np.sort(utility)
    low, most = 0.999 * ranked[0], ranked[min(int(CLIP_AT * len(ranked)), len(ranked) - 1)]
    scaled: Floats = (np.minimum(utility, most) - low) / max(ranked[-1] - low, LEAST_RANGE)
    return scaled


def _raises(gains: Sequence[float], window: int) -> int:
    """Count how often the sum of a window of rounds was below that of the window before."""
    ends = range(2 * window, len(gains) + 1, window)
    return sum(sum(gains[end - 2 * window : end - window]) > sum(gains[end - window : end]) for end in ends)


def _by_weight(rng: np.random.Generator, clients: NDArray[np.int64], weights: Floats, n: int) -> list[int]:
    """Draw without replacement, as likely as weights say; all alike if fewer than `n` have one."""
    likely = weights / weights.sum() if np.count_nonzero(weights) >= n else None  # some may be 0
    chosen: list[int] = rng.choice(clients, n, replace=False, p=likely).tolist()
    return chosen


def _drawn(rng: np.random.Generator, clients: Sequence[int], n: int) -> Sequence[int]:
    return [clients[i] for i in sorted(rng.choice(len(clients), n, replace=False))]


class Utility(Step):
    """|D_c| sqrt(mean squared loss) of the samples of a client, (1) of Oort (Lai et al. 2021), measured in no time.

    Oort takes the losses of training itself. Here they are those of the global model after the round.

    Args:
        losses: gives the losses (n,) of the client's samples.
    """

    __slots__ = ("losses",)  # no attribute that would count as a setting of the step, of which lineages are made
    name = "utility"

    def __init__(self, losses: Callable[[], Tensor]) -> None:
        self.losses = losses

    def run(self, state: Any, *model: Any) -> float:
        losses = self.losses()
        return float(len(losses) * losses.square().mean().sqrt())


CHOICES: dict[str, ClientChoice] = {"random": random, "tiers": tiers, "oort": oort}


@dataclass(frozen=True)
class Chooser:
    """The choice of a scenario, with its options.

    Attributes:
        asks_training: True if it depends on numbers that only training can give.
        is_random: True if nothing decides but a draw from those that are present.
    """

    name: str
    choose: ClientChoice
    options: Mapping[str, Any]
    asks_training: bool
    is_random: bool

    def __call__(self, candidates: Candidates, utility: Floats) -> Sequence[int]:
        """Give the clients that take part, in the candidates' order. Raises ScenarioError if the choice is none."""
        with calling_theirs(KEY, self.name):
            chosen = self.choose(candidates, *([utility] if self.asks_training else []), **self.options)
            wanted = set(chosen)
        if self.is_random:
            return chosen  # in order, and so many
        ordered = [client for client in candidates.clients if client in wanted]
        if not len(wanted) == len(ordered) == candidates.n:
            problem = f"must give {candidates.n} of {len(candidates.clients)} clients, each once"
            raise ScenarioError(problem, key=KEY, found=list(chosen)[:9])
        return ordered


def check_untrained(choose: Chooser) -> None:
    """Check that nothing has to be trained for a choice; otherwise raises ScenarioError."""
    if choose.asks_training:
        problem = f"{choose.name} chooses by what training tells, and nothing is trained"
        raise ScenarioError(problem, key=KEY, found=choose.name)


def find_choice(section: ChoiceSection | None) -> Chooser:
    """Return the choice that a scenario names. Raises ScenarioError if there is none, or no such option."""
    name = section.kind if section else next(iter(CHOICES))
    if name not in CHOICES and ":" not in name:
        raise ScenarioError("is no choice of clients", key=KEY, found=name, allowed=list(CHOICES))
    choose: ClientChoice = named(name, CHOICES, KEY)
    if not inspect.isroutine(choose):
        raise ScenarioError("is no function", key=KEY, found=name)
    options = filled(_options(choose), section.options if section else {}, section=KEY, head="kind", name=name)
    asks_training = "utility" in inspect.signature(choose).parameters
    return Chooser(name, choose, dict(options), asks_training=asks_training, is_random=choose is random)


@lru_cache(maxsize=8)  # a what-if asks at every point
def _options(choose: ClientChoice) -> type[pydantic.BaseModel]:
    """Return the options of a choice: its parameters that have names alone."""
    types = inspect.get_annotations(choose, eval_str=True)
    fields: dict[str, Any] = {
        key: (types.get(key, Any), ... if option.default is option.empty else option.default)
        for key, option in inspect.signature(choose).parameters.items()
        if option.kind is option.KEYWORD_ONLY
    }
    strict = pydantic.ConfigDict(extra="forbid", strict=True)
    return pydantic.create_model(choose.__name__, __config__=strict, **fields)
