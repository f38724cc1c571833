"""What the runs of this folder answer: accuracies over seeds, from the stored answers of every client."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from scenarios.trends import Figures, Table
from sfl_sim.metrics import exits

RHOS = (0.0, 0.2, 0.4, 0.6, 0.8)
N_LABELS = 10


@dataclass(frozen=True)
class Answered(Table):
    """A complete run with answers. Accuracies are in percent, means over clients, at each client's best threshold."""

    @cached_property
    def answers(self) -> pd.DataFrame:
        """Rows of answers.parquet."""
        assert not self.variants.empty
        rows = pd.read_parquet(self.folder / "answers.parquet")
        return rows.assign(variant=rows["variant"].astype(str))

    def at(self, rho: float | None) -> pd.DataFrame:
        """`accuracy` and `offload_probability` by variant and seed, at a smaller rho or as recorded."""
        rows = self.answers if rho is None else exits.at_rho(self.answers, rho)
        return exits.over_clients(exits.hybrid(rows, exits.oracle(rows, exits.thresholds(N_LABELS))))

    def accuracy(self, names: dict[str, str], rho: float | None = None) -> Figures:
        """The seeds' accuracies of variants, given as what they are called here -> their name."""
        found = 100 * self.at(rho)["accuracy"]
        return {called: found[name].to_numpy() for called, name in names.items()}

    def parts(self, names: dict[str, str]) -> dict[str, pd.DataFrame]:
        """For each variant the accuracies of `device` and `server` alone, on own labels and on unseen ones."""
        columns = {"device": "device_correct", "server": "server_correct"}
        by = self.answers.groupby(["variant", "seed", "client", "seen"])[list(columns.values())].mean()
        found = 100 * by.groupby(["variant", "seed", "seen"]).mean()
        return {called: found.loc[name].unstack("seen") for called, name in names.items()}


def spread(values: np.ndarray, digits: int = 1) -> str:
    """Median ± standard deviation."""
    return f"{np.median(values):.{digits}f} ± {np.std(values, ddof=1):.{digits}f}"
