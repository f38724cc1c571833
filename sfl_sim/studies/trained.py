"""Stored runs that other studies use: their variants, and the search for the one that fits a scenario."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sfl_sim.errors import blamed_on
from sfl_sim.scenario.concerns import NOT_LEARNED, Aside, differences
from sfl_sim.scenario.fields import Concern
from sfl_sim.scenario.load import Variant, load
from sfl_sim.scenario.sections import Scenario
from sfl_sim.store.earlier import no_run
from sfl_sim.store.files import contents, read_manifest
from sfl_sim.store.folder import check_unchanged
from sfl_sim.store.trial import SUMMARY

NOT_TRAINING = NOT_LEARNED | {Concern.SYSTEM, Concern.COMPUTING}
"""Concerns in which a trained model may differ from the one asked for: another system, another machine."""


class TrainedRun:
    """The folder of a run, given as `key`.

    Attributes:
        digest: digest of its scenario and settings.
        variants: variants of its scenario, with every seed.
        summaries: parts of summary.json by variant and seed; only of those that have finished a round.

    Raises ScenarioError if the folder holds no run.
    """

    def __init__(self, folder: Path, key: str = "--run") -> None:
        self.folder = folder
        if not (folder / SUMMARY).exists():
            raise no_run(folder, key)
        check_unchanged(folder, key)
        self.digest: str | None = read_manifest(folder).get("scenario")
        if self.digest is None:
            raise no_run(folder, key)
        with blamed_on(folder):
            self.variants = load(folder / "scenario.yaml").variants
            summaries = contents(folder / SUMMARY)["variants"]
            self.summaries: dict[tuple[str, int], Mapping[str, Any]] = {
                (summary["name"], summary["seed"]): summary for summary in summaries
            }

    def summary_of(self, variant: Variant) -> Mapping[str, Any] | None:
        """Return a variant's part of summary.json; None if it has not finished a round."""
        return self.summaries.get((variant.name, variant.scenario.seed))

    def nearest(self, scenario: Scenario, aside: Aside) -> tuple[Variant, dict[str, tuple[Any, Any]]]:
        """Return the variant that differs least from `scenario`, not counting keys `aside`, and the differences.

        Values come in pairs: that of the variant, and that of `scenario`.
        """
        told = [(variant, differences(variant.scenario, scenario, aside)) for variant in self.variants]
        return min(told, key=lambda each: len(each[1]))
