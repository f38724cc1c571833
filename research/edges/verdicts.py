"""Prints which trends of the study of forgetting with edges hold, with the numbers.

    python -m research.edges.verdicts [REPORTS]      (the folder with edges_forgetting; default: reports)

Run it from the root of the repository. The rule is that of research/trends.py; figures are percent or points.
"""

from research.trends import Comparison, Table, Trends, chain, judged, print_verdicts

ONE = "servers={}, latency_s=0.04"
EDGES = (2, 5, 10)


def names(every: int) -> dict[str, str]:
    """Names of SplitFedV2's variants by number of servers, with an average every so many rounds."""
    of_edges = {f"{n} edges": f"splitfed_v2, count={n}, average_every={every}" for n in EDGES}
    return {"1 server": f"splitfed_v2, {ONE}"} | of_edges


def forgetting_trends(table: Table) -> dict[str, list[Comparison]]:
    """Trends (a) to (d) of the scenario's header."""
    often, seldom = names(1), names(5)
    gaps, rare_gaps = table("performance_gap", often), table("performance_gap", seldom)
    hydra = table("performance_gap", {"Hydra": f"hydra, {ONE}"})
    return {
        "(a) PG falls with the number of edges": chain(gaps, ">", ">", ">"),
        "(b) PG grows with the rounds between two averages": [
            Comparison((f"{n}: every 5th", rare_gaps[n]), ">", ("every round", gaps[n])) for n in list(often)[1:]
        ],
        "(c) accuracy rises with the number of edges": chain(table("accuracy", often), "<", "<", "<"),
        "(d) Hydra has a smaller PG than 2 and 5 edges": [
            Comparison(("Hydra", hydra["Hydra"]), "<", (n, gaps[n])) for n in list(often)[1:3]
        ],
    }


TRENDS: Trends = [(forgetting_trends, ["forgetting"])]
"""Judges, and the scenarios that they judge."""


def main() -> None:
    """Print a Markdown table; of a scenario that was not run, nothing."""
    print_verdicts(judged("edges", TRENDS), "percent or points")


if __name__ == "__main__":
    main()
