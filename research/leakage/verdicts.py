"""Prints what leaks at which cut, behind which defence and with how much forgetting, with the numbers.

    python -m research.leakage.verdicts [REPORTS]      (the folder with leakage_cuts, ...; default: reports)

Run it from the root of the repository. The rule is that of research/trends.py. What leaks is the mean structural
similarity of samples and their reconstructions, times 100, and the share of labels that clusters of gradients give away
(docs/methods/leakage.md), both after the last round. Accuracy is the median of a run's last five rounds.
"""

from collections.abc import Callable, Mapping

import pandas as pd

from research.trends import Comparison, Figures, Table, Trends, alike, chain, judged, print_verdicts

CUTS = ("conv1", "conv2", "fc1", "fc2")
DEFENCES = {
    "none": "",
    "noise": ", noise sigma=1.0",
    "NoPeek": ", nopeek=1.0",
    "gradient noise": ", gradient_noise clip=0.01, sigma=0.1",
    "int2": ", int2",
}
"""Endings of the names of variants."""
DRAWN, LABELS, DEPENDENCE = "inversion ssim", "clusters accuracy", "dependence dcor2_unbiased"
"""Attacks and their metrics."""
MARGIN = 2
"""Points of accuracy, similarity and labels that are no difference; fixed before the runs."""
VARIANTS = {
    "V1": "splitfed_v1", "multi-head": "multihead", "Hydra": "hydra", "V2, arrival order": "splitfed_v2, fcfs",
    "V2, cyclic": "splitfed_v2, cyclic", "V2, random": "splitfed_v2, random_job",
}  # fmt: skip


class Leaks(Table):
    """Complete run of one scenario with attacks."""

    def leak(self, figure: str, names: Mapping[str, str]) -> Figures:
        """Figures of an attack by seed, times 100, of the variants in `names`, at their cut."""
        table = pd.read_parquet(self.folder / "leakage.parquet")
        is_it = (table["attack"] + " " + table["metric"] == figure) & (table["cut"] > 0) & (table["client"] == -1)
        rows = table[is_it & (table["round"] == table["round"].max())]
        values = rows.sort_values("seed").set_index("variant")["value"]
        return {called: 100 * values[[name]].to_numpy() for called, name in names.items()}


def cut_trends(runs: Leaks) -> dict[str, list[Comparison]]:
    """Trends (a) to (f), of cuts and defences."""
    at = {cut: {called: cut + ending for called, ending in DEFENCES.items()} for cut in CUTS}
    found = {
        "(a) the deeper the cut, the less can be drawn": chain(
            runs.leak(DRAWN, {cut: at[cut]["none"] for cut in CUTS}), ">", ">", ">"
        ),
        "(b) and the sooner a round ends": chain(
            runs("simulated_s", {cut: at[cut]["none"] for cut in CUTS}, 1 / 60), ">", ">", ">"
        ),
        "(f) gradients give labels away at every cut: more than half of them": [
            Comparison((cut, share), ">", ("half", 0 * share + 50))
            for cut, share in runs.leak(LABELS, {cut: at[cut]["none"] for cut in CUTS}).items()
        ],
    }
    for defence in DEFENCES:
        if defence == "none":
            continue
        hidden = LABELS if defence == "gradient noise" else DRAWN
        what = "of labels is given away" if defence == "gradient noise" else "can be drawn"
        found[f"(c) with {defence} less {what}, at every cut"] = _against_none(
            lambda names, hidden=hidden: runs.leak(hidden, names), defence, "<", at
        )
        found[f"(d) {defence} costs no accuracy, at any cut"] = _against_none(
            lambda names: runs("accuracy", names), defence, "~>=", at
        )
    found["(e) NoPeek makes what is sent depend less on samples, without bias"] = _against_none(
        lambda names: runs.leak(DEPENDENCE, names), "NoPeek", "<", at
    )
    return found


def _against_none(
    figures: Callable[[Mapping[str, str]], Figures], defence: str, sign: str, at: Mapping[str, Mapping[str, str]]
) -> list[Comparison]:
    found: list[Comparison] = []
    for cut, names in at.items():
        found += chain(figures({f"{cut}: {each}": names[each] for each in (defence, "none")}), sign, margin=MARGIN)
    return found


def forgetting_trends(runs: Leaks) -> dict[str, list[Comparison]]:
    """Trends (g) and (h): whether those that forget differently leak differently."""
    return {
        "(g) as much can be drawn, however much is forgotten": alike(runs.leak(DRAWN, VARIANTS), MARGIN),
        "(h) gradients give as many labels away, however much is forgotten": alike(runs.leak(LABELS, VARIANTS), MARGIN),
    }


TRENDS: Trends = [(cut_trends, ["cuts"]), (forgetting_trends, ["forgetting"])]
"""Judges, and the scenarios that they judge."""


def main() -> None:
    """Print a Markdown table; of a scenario that was not run, nothing."""
    found = judged("leakage", TRENDS, Leaks)
    print_verdicts(found, "similarity times 100, labels and accuracy in percent, time in minutes")


if __name__ == "__main__":
    main()
