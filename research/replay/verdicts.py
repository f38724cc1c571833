"""Prints which trends of KoReA-SFL's paper hold in the runs of this folder's scenarios, with the numbers.

    python -m research.replay.verdicts [REPORTS]      (the folder with replay_table, ...; default: reports)

Run it from the root of the repository. The rule is that of research/trends.py. Accuracy is the median of a run's last
five rounds, its spread their standard deviation. SFL is splitfed_v1 averaging every round, which equals FL, so the
paper's SFL ~ FL is not tested. (j) and (k) are not in the paper: the time to 90 % of SFL's best accuracy,
and stronger pulls.
"""

from collections.abc import Mapping

from research.trends import Comparison, Figures, Table, Trends, chain, judged, print_verdicts

ACCURACY = "accuracy"
SFL = "splitfed_v1"
KOREA, WITH_NORM = "korea, {}", "korea, joint_forward=false, {}"
SKEWED = {f"Dir {alpha}": f"alpha=0{alpha}" for alpha in (".1", ".3", ".5")}
PARTITIONS = SKEWED | {"IID": "iid"}
PARTICIPANTS = {"5 clients": "participation=0.05", "20": "participation=0.2", "50": "participation=0.5"}
ON_FASHION = "korea, window_ratio, p0=0.2"
FIXED = "fixed, p0=0.2"
MARGIN = 2
"""Points of accuracy that are no effect, in runs with new seeds."""
RULES = {"adaptive": "window_ratio", "fixed": FIXED, "no replay": "off"}
"""Of the paper's ablation, whose last is SFL."""
WITH_NORM_FIXED = f"{SKEWED['Dir .1']}, {WITH_NORM.format(FIXED)}"


def of(method: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Names of one method's variants, by setting."""
    return {called: f"{setting}, {method}" for called, setting in settings.items()}


def pairs(ours: Figures, sign: str, theirs: Figures) -> list[Comparison]:
    """Comparisons `KoReA sign SFL` in every setting."""
    return [Comparison((f"{where}: KoReA", ours[where]), sign, ("SFL", theirs[where])) for where in ours]


def comparison_trends(data: str, table: Table, adaptive: str) -> dict[str, list[Comparison]]:
    """Trends (a) to (d), from Table 1, and (i) and (j), from bytes and time to the target."""

    def both(key: str, scale: float = 100) -> tuple[Figures, Figures]:
        return table(key, of(adaptive, PARTITIONS), scale), table(key, of(SFL, PARTITIONS), scale)

    def compared(sign: str, key: str, scale: float = 100) -> list[Comparison]:
        korea, sfl = both(key, scale)
        return pairs(korea, sign, sfl)

    korea, sfl = both(ACCURACY)
    lost = {called: found["IID"] - found["Dir .1"] for called, found in (("KoReA", korea), ("SFL", sfl))}
    found = {
        "(a) KoReA is more accurate than SFL": pairs(korea, ">", sfl),
        "(b) its gain grows with the skew": chain({where: korea[where] - sfl[where] for where in SKEWED}, ">", ">"),
        "(c) its curves are smoother": compared("<", "accuracy_spread"),
        "(d) it loses less from IID to Dir .1": chain(lost, "<"),
        "(i) it needs fewer bytes to 90 % of SFL's best": compared("<", "bytes_to_accuracy", 1e-9),
        "(j) not in the paper: it needs less time to 90 % of SFL's best": compared("<", "time_to_accuracy_s", 1 / 60),
    }
    return {f"{name} ({data})": comparisons for name, comparisons in found.items()}


def ablation_trends(data: str, table: Table, korea: str) -> dict[str, list[Comparison]]:
    """Trend (e), from Table 2, but for adaptive >= fixed: the paper's two replay as much in all (`matched_trends`)."""
    wanted = {"adaptive > no replay": [], "fixed > no replay, with more bytes": [], "no replay > SFL": []}
    for where, setting in PARTITIONS.items():
        names = {called: f"{setting}, {korea.format(rule)}" for called, rule in RULES.items()}
        figures = table(ACCURACY, names | {"SFL": f"{setting}, {SFL}"})
        for claim, found in wanted.items():
            ours, theirs = claim.partition(",")[0].split(" > ")
            found.append(Comparison((f"{where}: {ours}", figures[ours]), ">", (theirs, figures[theirs])))
    return {f"(e) {claim} ({data})": found for claim, found in wanted.items()}


def matched_trends(table: Table) -> dict[str, list[Comparison]]:
    """Trend (e), adaptive >= fixed, where both replay as much in all."""
    found = []
    for where, setting in PARTITIONS.items():
        names = {"adaptive": f"{setting}, window_ratio", "fixed": f"{setting}, fixed, p0=0.44"}
        ours, theirs = table(ACCURACY, {f"{where}: {called}": name for called, name in names.items()}).items()
        found.append(Comparison(ours, "~>=", theirs, table.margin(MARGIN)))
    return {"(e) adaptive >= fixed of as many samples (Fashion-MNIST)": found}


def both_tables(data: str, table: Table, korea: str) -> dict[str, list[Comparison]]:
    """The trends of both of the paper's tables."""
    return comparison_trends(data, table, korea.format(RULES["adaptive"])) | ablation_trends(data, table, korea)


def pull_trends(pull: Table) -> dict[str, list[Comparison]]:
    """Trend (k), our own: adaptive against no replay and SFL after 100 rounds, with branches pulled more strongly."""
    found = {}
    for alpha in (0.1, 0.3, 1.0):
        comparisons = []
        for where in ("Dir .1", "Dir .5"):
            setting = f"data.partition.{SKEWED[where]}"
            names = {called: f"korea, method.alpha={alpha}, {RULES[called]}" for called in ("adaptive", "no replay")}
            variants = {f"{where}: {called}": f"{setting}, {name}" for called, name in (names | {"SFL": SFL}).items()}
            ours, *others = pull(ACCURACY, variants).items()
            comparisons += [Comparison(ours, ">", other) for other in others]
        found[f"(k) not in the paper: adaptive > no replay, > SFL after 100 rounds with a pull of {alpha}"] = (
            comparisons
        )
    return found


def proportion_trends(norm: Table, proportions: Table) -> dict[str, list[Comparison]]:
    """Trend (f); diminishing returns compare the gains of two equal steps, from 0.1 to 0.3 and from 0.3 to 0.5."""
    names = {p: f"p0={p}" for p in ("0.5", "0.3", "0.1")}
    found = proportions(ACCURACY, names) | norm(ACCURACY, {"0.2": WITH_NORM_FIXED})
    falling = dict(sorted(found.items(), reverse=True))
    steps = {"from 0.1 to 0.3": found["0.3"] - found["0.1"], "from 0.3 to 0.5": found["0.5"] - found["0.3"]}
    return {
        "(f) the more is replayed, the better": [
            *chain(falling, ">=", ">=", ">="),
            *chain({p: found[p] for p in ("0.5", "0.1")}, ">"),
        ],
        "(f) with diminishing returns": chain(steps, ">"),
    }


def cut_trends(norm: Table, cuts: Table) -> dict[str, list[Comparison]]:
    """Trend (g), with batch norm and without."""
    deeper = ("conv2", "fc1")
    found = norm(ACCURACY, {"conv1": WITH_NORM_FIXED}) | cuts(ACCURACY, {cut: cut for cut in deeper})
    plain = cuts(ACCURACY, {cut: f"cnn_patches, {cut}" for cut in ("conv1", *deeper)})
    claim = "(g) the larger the server's part, the better"
    return {f"{claim} (batch norm)": chain(found, ">", ">"), f"{claim} (no batch norm)": chain(plain, ">", ">")}


def participation_trends(participation: Table) -> dict[str, list[Comparison]]:
    """Trend (h); ten clients are in (a)."""
    korea, sfl = (participation(ACCURACY, of(method, PARTICIPANTS)) for method in (ON_FASHION, SFL))
    return {"(h) KoReA is more accurate than SFL, however many take part": pairs(korea, ">", sfl)}


TRENDS: Trends = [
    (lambda table: both_tables("CIFAR-10", table, KOREA), ["table"]),
    (lambda table: both_tables("CIFAR-10, batch norm", table, WITH_NORM), ["norm"]),
    (lambda table: comparison_trends("Fashion-MNIST", table, ON_FASHION), ["fashion"]),
    (pull_trends, ["pull"]),
    (proportion_trends, ["norm", "proportions"]),
    (cut_trends, ["norm", "cuts"]),
    (participation_trends, ["participation"]),
    (matched_trends, ["matched"]),
]
"""Judges, and the scenarios that they judge."""


def main() -> None:
    """Print a Markdown table; of a scenario that was not run, nothing."""
    print_verdicts(
        judged("replay", TRENDS),
        "accuracy and spread in percent or points, bytes in GB, time in minutes; [seeds that get there]",
    )


if __name__ == "__main__":
    main()
