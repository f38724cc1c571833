"""Accuracies of this folder's runs by seed, computed from the stored answers of every client (answers.parquet)."""

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from research.trends import Figures, Table
from sfl_sim.metrics import exit_metrics

RHOS = (0.0, 0.2, 0.4, 0.6, 0.8)
N_LABELS = 10


@dataclass(frozen=True)
class Answered(Table):
    """A complete run with answers. Accuracies are percent, means over clients, at each client's best threshold."""

    @cached_property
    def answers(self) -> pd.DataFrame:
        """Rows of answers.parquet."""
        assert not self.variants.empty
        rows = pd.read_parquet(self.folder / "answers.parquet")
        return rows.assign(variant=rows["variant"].astype(str))

    def at(self, rho: float | None) -> pd.DataFrame:
        """Shares `accuracy` and `offload_probability` by variant and seed, at a smaller rho or (None) as recorded."""
        rows = self.answers if rho is None else exit_metrics.at_rho(self.answers, rho)
        return exit_metrics.over_clients(
            exit_metrics.hybrid(rows, exit_metrics.oracle(rows, exit_metrics.thresholds(N_LABELS)))
        )

    def accuracy(self, names: dict[str, str], rho: float | None = None) -> Figures:
        """Accuracies by seed, in percent, of the variants in `names` (short name -> name of the variant)."""
        found = 100 * self.at(rho)["accuracy"]
        return {called: found[name].to_numpy() for called, name in names.items()}

    def parts(self, names: dict[str, str]) -> dict[str, pd.DataFrame]:
        """Accuracies of device and server alone, in percent, on own labels and on unseen ones, for each variant."""
        columns = {"device": "device_correct", "server": "server_correct"}
        by = self.answers.groupby(["variant", "seed", "client", "seen"])[list(columns.values())].mean()
        found = 100 * by.groupby(["variant", "seed", "seen"]).mean()
        return {called: found.loc[name].unstack("seen") for called, name in names.items()}
