"""Prints what codecs gain and lose in the runs of this folder's scenarios, with the numbers.

    python -m research.wire.verdicts [REPORTS]      (the folder with wire_fashion, ...; default: reports)

Run it from the root of the repository. The rule is that of research/trends.py. Accuracy is the median of a run's last
five rounds. RandTopk and top-k send equally many bytes.
"""

from research.trends import Comparison, Table, Trends, chain, judged, print_verdicts

METHODS = {"V1": "splitfed_v1", "V1, 30 %": "splitfed_v1, target_accuracy=0.3", "V2": "splitfed_v2"}
CODECS = {
    "none": "", "fp16": ", fp16, fp16", "int8": ", int8, int8", "int4": ", int4, int4", "top-k": ", topk, keep=0.05",
    "RandTopk": ", randtopk, keep=0.05", "SplitFC": ", lr=0.01, splitfc, ratio=16.0",
}  # fmt: skip
"""Endings of the names of variants."""
CUTS = ("conv1", "conv2", "fc1", "fc2")
MARGIN = 2
"""Points of accuracy that are no loss; fixed before the runs."""


def compared(table: Table, key: str, one: str, sign: str, other: str, scale: float = 100) -> list[Comparison]:
    """Comparisons of two codecs by the methods that were run with both."""
    found: list[Comparison] = []
    for called, method in METHODS.items():
        names = {f"{called}: {each}": method + CODECS[each] for each in (one, other)}
        if not set(names.values()) <= set(table.variants["name"]):
            continue
        found += chain(table(key, names, scale), sign, margin=MARGIN)
    return found


def codec_trends(data: str, table: Table) -> dict[str, list[Comparison]]:
    """Trends (a) to (c), of accuracy, and (d), of time in minutes."""
    found = {
        "(a) int8 loses no accuracy": compared(table, "accuracy", "int8", "~>=", "none"),
        "(b) RandTopk is more accurate than top-k of the same bytes": compared(
            table, "accuracy", "RandTopk", ">", "top-k"
        ),
        "(c) SplitFC at 16 to 1 loses no accuracy": compared(table, "accuracy", "SplitFC", "~>=", "none"),
    }
    for codec in list(CODECS)[1:]:
        found[f"(d) not in a paper: {codec} reaches the target sooner than no codec"] = compared(
            table, "time_to_accuracy_s", codec, "<", "none", 1 / 60
        )
    return {f"{name} ({data})": comparisons for name, comparisons in found.items() if comparisons}


def cut_trends(table: Table) -> dict[str, list[Comparison]]:
    """Trend (e), one for each cut: compressing pays where it holds."""
    found = {}
    for codec in ("int8", "top-k"):
        for cut in CUTS:
            names = {each: cut + CODECS[each] for each in (codec, "none")}
            name = f"(e) not in a paper: {codec} reaches the target sooner than no codec, cut after {cut}"
            found[name] = chain(table("time_to_accuracy_s", names, 1 / 60), "<")
    return found


TRENDS: Trends = [
    (lambda table: codec_trends("Fashion-MNIST", table), ["fashion"]),
    (lambda table: codec_trends("CIFAR-10", table), ["cifar10"]),
    (cut_trends, ["cuts"]),
]
"""Judges, and the scenarios that they judge."""


def main() -> None:
    """Print a Markdown table; of a scenario that was not run, nothing."""
    print_verdicts(judged("wire", TRENDS), "accuracy in percent, time in minutes; [seeds that get there]")


if __name__ == "__main__":
    main()
