"""Prints what adapters gain and lose against full fine-tuning in lora/roles, with the numbers.

    python -m research.lora.verdicts [REPORTS]      (the folder with lora_roles; default: reports)

Run it from the root of the repository. The rule is that of research/trends.py; the margin of perplexities is 0.02.
They and the performance gap (of roles) are medians of a run's four rounds, hours are those of all of them.
"""

from research.trends import Comparison, Figures, Table, Trends, chain, judged, one_against, print_verdicts

FULL, LORA = "fcfs", "fcfs, rank=4, lr=0.001"
AGGREGATES = {"separate": LORA, "ffa": "rank=4, ffa, lr=0.001", "concat": "rank=4, concat, lr=0.001",
              "svd": "rank=4, svd, lr=0.001"}  # fmt: skip
FROZEN = "splitfrozen, rank=4, lr=0.001"
MARGIN = 0.02
"""Difference of perplexities that says nothing; fixed after the pilot, before the runs."""
HOUR_S = 3600


def trends(table: Table) -> dict[str, list[Comparison]]:
    """Trends (a) to (h); those of a paper name it."""

    def perplexity(names: dict[str, str]) -> Figures:
        return table("perplexity", names, 1)

    def hours(names: dict[str, str]) -> Figures:
        return table("simulated_s", names, 1 / HOUR_S)

    pair = {"LoRA": LORA, "full": FULL}
    frozen = {"SplitFrozen": FROZEN, "LoRA": LORA, "full": FULL}
    cuts = {f"block{cut}": LORA if cut == 2 else f"block{cut}, rank=4, lr=0.001" for cut in (1, 2, 3, 4)}
    ranks = {f"rank {rank}": LORA if rank == 4 else f"rank={rank}, lr=0.001" for rank in (16, 8, 4, 2)}
    found = {
        "(a) adapters are as good as full fine-tuning (LoRA)": chain(perplexity(pair), "~<=", margin=MARGIN),
        "(b) adapters take fewer hours (LoRA)": chain(hours(pair), "<"),
        "(c) joined adapters are better than those averaged each by itself (HSplitLoRA)": chain(
            perplexity({name: AGGREGATES[name] for name in ("concat", "separate")}), "<"
        ),
        "(c) not in a paper: the best product of their rank is better than averages of factors": chain(
            perplexity({name: AGGREGATES[name] for name in ("svd", "separate")}), "<"
        ),
        "(d) a frozen A costs nothing": chain(
            perplexity({name: AGGREGATES[name] for name in ("ffa", "separate")}), "~<=", margin=MARGIN
        ),
        "(e) SplitFrozen takes the fewest hours (its paper)": one_against("SplitFrozen", "<", hours(frozen)),
        "(e) SplitFrozen is as good as adapters on both sides (its paper)": chain(
            perplexity({name: frozen[name] for name in ("SplitFrozen", "LoRA")}), "~<=", margin=MARGIN
        ),
        "(f) a larger rank is better": chain(perplexity(ranks), "<", "<", "<"),
    }
    for order in ("fcfs", "cyclic"):
        names = {"LoRA": f"{order}, rank=4, lr=0.001", "full": order}
        found[f"(g) not in a paper: an adapter forgets less, gap between roles, {order}"] = chain(
            table("performance_gap", names, 100), "<"
        )
    found["(h) not in a paper: the cut does not change what is learned"] = chain(
        perplexity(cuts), "~", "~", "~", margin=MARGIN
    )
    return found


TRENDS: Trends = [(trends, ["roles"])]
"""Judges, and the scenarios that they judge."""


def main() -> None:
    """Print a Markdown table; of a scenario that was not run, nothing."""
    print_verdicts(judged("lora", TRENDS), "perplexity, hours, performance gap in points")


if __name__ == "__main__":
    main()
