"""Prints how long rounds take with cuts that follow from times, and which trends hold.

    python -m research.controllers.verdicts [FOLDER]     (of the run; default: reports/controllers_cuts)

Run it from the root of the repository, after `sfl-sim controllers/cuts --timing-only`. Figures are seconds of a round,
the mean of all rounds but the first; "best cut" is the fixed cut that was fastest with this seed, known afterwards.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from research.trends import Comparison, print_verdicts

World = tuple[str, int]
LINKS, SERVERS = ("mobiperf", "fedscale", "wifi"), (100, 5)
WAYS = ("best cut", "device_speed", "greedy", "makespan", "median", "bandit", "dtfl", "dtfl, models counted")
MARGIN = 0.05
"""Share by which a way may be slower than the best cut and still counts as equally fast."""


def rounds_of(folder: Path) -> pd.DataFrame:
    """Return a row per links, server, seed and way: the seconds of its round."""
    rounds = pd.read_parquet(folder / "rounds.parquet").query("round > 1")
    rounds = rounds.assign(seconds=rounds["ended_s"] - rounds["started_s"])
    table = rounds.groupby(["variant", "seed"], observed=True)["seconds"].mean().reset_index()
    table[["links", "server", "way"]] = [_told(name) for name in table["variant"].astype(str)]
    return table.groupby(["links", "server", "seed", "way"])["seconds"].min().reset_index()


def _told(variant: str) -> tuple[str, int, str]:
    links = next((name for name in LINKS if name in variant), "wifi")
    server = next(speed for speed in SERVERS if f"speedup={speed}," in variant)
    if "dtfl" in variant:
        return links, server, "dtfl, models counted" if "count_models=true" in variant else "dtfl"
    return links, server, next((way for way in WAYS if f" {way}," in variant), "best cut")


def main() -> None:
    """Print two Markdown tables."""
    table = rounds_of(Path(sys.argv[1] if len(sys.argv) > 1 else "reports/controllers_cuts"))
    worlds = [(links, server) for links in LINKS for server in SERVERS]
    of = {
        world: rows.pivot(index="seed", columns="way", values="seconds")
        for world, rows in table.groupby(["links", "server"])
    }
    print(f"| way | {' | '.join(f'{links}, {server}' for links, server in worlds)} |\n|---|{'---|' * len(worlds)}")
    for way in WAYS:
        print(f"| {way} | {' | '.join(f'{of[world][way].median():,.0f}' for world in worlds)} |")
    print()

    def faster(
        by: str, than: str, relation: str = ">", margin: float | None = None, worlds: Sequence[World] = worlds
    ) -> list[Comparison]:
        """How many times as long rounds take with `than`, against 1, in each of these worlds."""
        ratios = [(of[world][than] / of[world][by]).to_numpy() for world in worlds]
        return [Comparison((f"{than} : {by}", r), relation, ("1", np.ones_like(r)), margin) for r in ratios]

    counted, slow = "dtfl, models counted", [("wifi", 5)]
    trends = {
        "(a) makespan is at most 5 % slower than the best cut": faster("makespan", "best cut", "~>=", MARGIN),
        "(b) makespan is faster than cuts by device": faster("makespan", "device_speed"),
        "(c) on wifi with a slow server makespan is faster than greedy": faster("makespan", "greedy", worlds=slow),
        "(d) DTFL that counts models is faster than makespan": faster(counted, "makespan"),
    }
    print_verdicts(trends, "ratio of seconds")


if __name__ == "__main__":
    main()
