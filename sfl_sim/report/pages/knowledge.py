"""Panels on what models know: which labels, from round to round and within a round, and with early exits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup, escape

from sfl_sim.metrics.exit_metrics import achieved, achieved_by_rho, trade_off
from sfl_sim.metrics.scores import GROUPED, LAST_ROUNDS, SCORES, client_ends, label_ends, not_learned
from sfl_sim.report import display, figures, style
from sfl_sim.report.display import listed, percent
from sfl_sim.report.figures import MAX_NAMES, MAX_NARROW_BANDS
from sfl_sim.report.frames import Frames, ShownVariant, label_names, label_ranks
from sfl_sim.report.lead import MAX_SPANS, Sentence
from sfl_sim.report.pages.learning import against
from sfl_sim.report.pages.one_round import drawn
from sfl_sim.report.panel import Column, Declared, Panel, Table, by_variant, columns_of
from sfl_sim.report.results import TIME, knowing, of_each
from sfl_sim.store import places

# Labels

MAX_ROUNDS, MAX_SNAPSHOTS, MAX_DOTS = 120, 400, 400
FILMED_ROUNDS, MATRICES = 2, 5
STRIP_SHARE = 0.56
MAX_LABELS = 4
"""Largest number of labels that a sentence names."""
SHARED = 0.8
"""Share of the room of a label that variants share."""
MIDDLE = {"size": 10}
SEED: Any = {"marker": {"size": 5, "line": {"width": 0}}, "opacity": 0.5, "showlegend": False}
"""Looks of the marks of medians and of seeds."""


def knows_chance(frames: Frames) -> bool:
    """Whether an answer is one of the labels, so that guessing is right once in their number."""
    return frames.score == SCORES[0] and not frames.has_perplexity


def unlearned(frames: Frames) -> list[Sentence]:
    """Say in a sentence which labels variants have not learned (`scores.not_learned`); nothing if they know all."""
    missed = not_learned(label_ends(frames.labels)) if knows_chance(frames) and len(frames.labels) else pd.DataFrame()
    if missed.empty:
        return []
    clauses, labels = [], {}
    for variant, own in of_each(missed, frames.variants):
        if len(own):
            labels[variant.label] = list(own["label_name"])
            clauses.append(variant.html + " has not learned " + _some_labels(labels[variant.label]))
    if len(clauses) > MAX_SPANS:
        clauses[MAX_SPANS - 1 :] = [Markup("{} other variants lack some, too").format(len(clauses) - MAX_SPANS + 1)]
    chances = sorted({*missed["chance"]})
    over = f" in the median over {frames.n_seeds} seeds" if frames.n_seeds > 1 else ""
    below = escape(f": accuracy there ends below chance ({' or '.join(map(percent, chances))}){over}.")
    return [Sentence(Markup("; ").join(clauses) + below, {"not learned": labels, "chance": chances})]


def _some_labels(names: Sequence[Markup]) -> Markup:
    """Labels in a sentence: label 8; cat and dog; 12 labels."""
    if len(names) > MAX_LABELS:
        return Markup("{} labels").format(len(names))
    noun = "" if not all(name.isdigit() for name in names) else "label " if len(names) == 1 else "labels "
    return noun + listed(names)


def label_panels(frames: Frames) -> list[Panel]:
    """The panel on the accuracy of each label at the end, if labels were tested."""
    if not (trained := knowing(frames, "label", "labels")):
        return []
    chance = " The dotted level is chance: a label below it has not been learned." if knows_chance(frames) else ""
    seeds = "large marks: medians over seeds, small ones: seeds" if frames.n_seeds > 1 else "one seed"
    caption = f"For each seed the median of the last {LAST_ROUNDS} rounds ({seeds}).{chance}"
    drawings = [("Accuracy by label", partial(accuracy_by, frames, trained))]
    if frames.clients["label_samples"].notna().all():
        drawings.append(("Accuracy by client", partial(accuracy_by_client, frames, trained)))
        caption += " A client's accuracy is the mean of those of its own labels, weighed by its samples."
    known = [name for name in GROUPED if frames.summary[name].notna().any()]
    table = by_variant(columns_of("summary", *known), of_each(frames.summary, trained))
    return [Panel("Accuracy by label", caption, drawings, columns=len(drawings), tables=[table] if known else [])]


def asks_for_order(frames: Frames) -> bool:
    """Whether variants differ in the server's order, so that a label's place in it is the question."""
    return len({variant.order for variant in frames.variants}) > 1


def history_panels(frames: Frames) -> list[Panel]:
    """The panels on labels from round to round, and by their place in the order if that is the question."""
    trained, asked = knowing(frames, "label", "labels"), asks_for_order(frames)
    if not trained:
        return []
    history = [(variant.html, partial(label_history, frames, variant)) for variant in trained]
    spread = figures.over_seeds(frames.n_seeds)
    in_order = (
        " in the cyclic order of the seed, the first on top. If colours get paler from top to bottom, labels that were "
        "served last overwrite the first, and the performance gap (PG) below stays high"
        if all(in_one_order(frames, variant) for variant in trained)
        else ", above the performance gap (PG)"
    )
    caption = f"Rows are labels{in_order} ({spread}; colours: medians)."
    panels = [Panel("Which labels are forgotten", caption, history, columns=min(len(history), 3))]
    if asked:
        caption = (
            "If marks rise from left to right, labels that were served last overwrite the first. Seeds have other "
            "orders, so that a place stands for another label in each (large marks: medians over seeds)."
        )
        by_place = [("Accuracy by place in the cyclic order", partial(accuracy_by, frames, trained, "place"))]
        panels.append(Panel("Accuracy by place in the order", caption, by_place))
    return panels


def in_one_order(frames: Frames, variant: ShownVariant) -> bool:
    """Whether a label's place in the order is the question, and all seeds have the same label at each."""
    labels = frames.labels[frames.labels["variant"] == variant.label]
    return asks_for_order(frames) and bool((labels.groupby(label_ranks(labels))["label"].nunique() == 1).all())


def label_history(frames: Frames, variant: ShownVariant) -> go.Figure:
    """Accuracy of each label after each round (median over seeds), above the performance gap."""
    labels = frames.labels[frames.labels["variant"] == variant.label]
    in_order = in_one_order(frames, variant)
    labels = labels.assign(rank=label_ranks(labels) if in_order else labels["label"])
    accuracy = labels.pivot_table(index="round", columns="rank", values="accuracy", aggfunc="median")
    accuracy = display.thin(accuracy, MAX_ROUNDS)
    names = labels.groupby("rank")["label_name"].first()
    if in_order:
        names = (names.index.to_series() + 1).astype(int).astype(str) + ": " + names

    figure = figures.canvas(430, rows=2, shared_xaxes=True, vertical_spacing=0.06, row_heights=[0.72, 0.28])
    figures.heat(
        figure, accuracy.index, names.index, accuracy.T, "%{customdata}: %{z:.1f} % after round %{x}<extra></extra>",
        customdata=np.tile(names, (len(accuracy), 1)).T, colorbar=figures.percent_bar(0.72), row=1, col=1,
    )  # fmt: skip
    gap = frames.rounds[frames.rounds["variant"] == variant.label]
    hover = "PG %{y:.1f} points after round %{x}<extra></extra>"
    figures.medians(figure, variant, gap, "round", "performance_gap", hover=hover, row=2, col=1)
    figure.update_traces(showlegend=False, selector={"type": "scatter"})  # the heading names the variant
    shown = names.iloc[:: -(-len(names) // MAX_NAMES)]
    figure.update_yaxes(row=1, autorange="reversed", showgrid=False, tickvals=shown.index, ticktext=shown)
    figure.update_yaxes(row=2, title="PG (points)", range=[0, 110 * frames.rounds["performance_gap"].max()], nticks=4)
    return figure.update_xaxes(figures.round_axis(frames.rounds["round"].max()), row=2)


def accuracy_by(frames: Frames, shown: Sequence[ShownVariant], by: Literal["label", "place"] = "label") -> go.Figure:
    """Accuracy of each label at the end, or of each place in the order: variants side by side, seeds as small marks."""
    ends = label_ends(frames.labels)
    ends["place"] = label_ranks(ends).astype(int) + 1
    ends["name"] = ends["label_name"] if by == "label" else ends["place"].astype(str)
    names = list(ends.sort_values(by)["name"].unique())
    figure = figures.canvas(330)
    for number, variant in enumerate(shown):
        own = ends[ends["variant"] == variant.label]
        beside = SHARED * ((number + 0.5) / len(shown) - 0.5)
        for rows, look in ((own, SEED), (own.groupby("name", as_index=False)["accuracy"].median(), {"marker": MIDDLE})):
            if look is not SEED or own["seed"].nunique() > 1:
                at = [names.index(name) + beside for name in rows["name"]]
                figures.marks(
                    figure, variant, at, 100 * rows["accuracy"].to_numpy(), "%{customdata}: %{y:.1f} %",
                    customdata=list(rows["name"]), **look,
                )  # fmt: skip
    if knows_chance(frames) and by == "label" and ends["chance"].nunique() == 1:
        figures.level(figure, 100 * ends["chance"].iloc[0])
    ticks = figures.evenly_spaced(range(len(names)))
    figure.update_xaxes(title="label" if by == "label" else "place in the cyclic order", showgrid=False)
    figure.update_xaxes(tickvals=ticks, ticktext=[names[tick] for tick in ticks], range=[-0.5, len(names) - 0.5])
    return figure.update_yaxes(title="accuracy (%)", range=[-3, 103])


def accuracy_by_client(frames: Frames, shown: Sequence[ShownVariant]) -> go.Figure:
    """Accuracy of the clients at the end, the lowest first: medians over seeds ± standard deviation."""
    ends = client_ends(label_ends(frames.labels), frames.clients)
    ends["share"] *= 100
    hover = "%{x:.0f} % of the clients have at most %{y:.1f} %"
    figure = figures.curves(of_each(ends, shown), "share", "accuracy", hover, by="share", height_px=330)
    figure.update_xaxes(title="clients, the worst first (%)", range=[0, 103])
    return figure.update_yaxes(title="accuracy (%)", range=[-3, 103])


@dataclass(frozen=True)
class RoundFilm:
    """The snapshots of one round of a variant's first seed.

    Attributes:
        names: of the labels by number, in the cyclic order.
        matrices: by the number of jobs run before; true labels x answers, both in the cyclic order.
        served: the dominant labels of the clients whose training jobs the server ran, in order.
    """

    variant: ShownVariant
    round: int
    names: pd.Series
    matrices: dict[Any, pd.DataFrame]
    served: pd.Series

    @property
    def known(self) -> pd.DataFrame:
        """Share of each label that is answered right: labels x jobs."""
        return pd.DataFrame({job: np.diag(matrix) for job, matrix in self.matrices.items()}, self.names.index)


def round_films(frames: Frames) -> list[RoundFilm]:
    """The first rounds that were looked into, of each of the first variants."""
    films = []
    for variant in frames.variants[: style.MAX_DETAILED]:
        names, shares = label_names(frames, variant), variant.first_seed(frames.confusion)
        dominant = variant.first_seed(frames.clients).set_index("client")["dominant_label"]
        for number in sorted(shares["round"].unique())[:FILMED_ROUNDS]:
            matrices = {
                job: table.pivot(index="true_label", columns="predicted_label", values="share")
                for job, table in shares[shares["round"] == number].groupby("job")
            }
            matrices = {job: matrix.loc[names.index, names.index] for job, matrix in matrices.items()}
            jobs = variant.rows("ops", ["client", "started_s"], node=places.SERVER, kind="train", round=number)
            served = jobs.sort_values("started_s")["client"].map(dominant)
            films.append(RoundFilm(variant, number, names, matrices, served))
    return films


def film_panels(frames: Frames) -> list[Panel]:
    """The panel on labels within a round, if it was looked into."""
    films = round_films(frames)
    if not films:
        return []
    return [
        Panel(
            "What the model knows during a round",
            "Above, the share of each label that the global model would answer correctly if the round ended there. "
            "Dots are the server's jobs, at their clients' dominant labels. A row that gets darker at its dots and "
            "paler after them is learned and forgotten within the round. Below, the confusion matrix: a dark column is "
            f"a label that is predicted for everything (first seed; labels in its cyclic order{drawn(frames)}).",
            [(film.variant.html + f", round {film.round}", partial(round_film, film)) for film in films],
            columns=min(len({film.round for film in films}), FILMED_ROUNDS),
        )
    ]


def round_film(film: RoundFilm) -> go.Figure:
    """Share of each label answered right after so many jobs, above confusion matrices at a few of these moments.

    A column stands for the jobs since the snapshot before, so that a label's turn and what it taught share a column.
    Dots are the jobs, on the row of their client's dominant label.
    """
    known = display.thin(film.known.T, MAX_SNAPSHOTS).T
    moments = display.thin(known.T, MATRICES).index
    names, columns, jobs = list(film.names), len(moments), known.columns.to_numpy()
    # A column for each snapshot, from that before to its own; the round's start gets one of its own.
    edges = [jobs[0] - jobs[1] if len(jobs) > 1 else -1, *jobs]
    figure = figures.canvas(
        460, rows=2, cols=columns, specs=[[{"colspan": columns}, *[None] * (columns - 1)], [{}] * columns],
        row_heights=[STRIP_SHARE, 1 - STRIP_SHARE], vertical_spacing=0.24, horizontal_spacing=0.02,
        subplot_titles=["", *(f"after<br>{job:,} jobs" if job else "start" for job in moments)],
    )  # fmt: skip
    figures.heat(
        figure, edges, names, known, "%{y}: %{z:.0f} % correct<extra></extra>",
        colorbar=figures.percent_bar(STRIP_SHARE), row=1, col=1,
    )  # fmt: skip
    served = film.served if len(film.served) <= MAX_DOTS else film.served.iloc[:0]
    figure.add_scatter(
        x=np.arange(len(served)) + 0.5, y=list(served.map(film.names)), mode="markers", hoverinfo="skip",
        marker={"size": 3.5, "color": style.DOT, "line": {"width": 0}}, row=1, col=1,
    )  # fmt: skip
    for column, job in enumerate(moments, start=1):
        hover = "%{y} predicted as %{x}: %{z:.0f} %<extra></extra>"
        figures.heat(figure, names, names, film.matrices[job], hover, row=2, col=column)
    figure.update_annotations(font_size=11, font_color=style.MUTED)
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    figure.update_yaxes(row=1, tickvals=figures.evenly_spaced(names))
    figure.update_yaxes(row=2, showticklabels=False)
    figure.update_yaxes(row=2, col=1, title="true label")
    figure.update_xaxes(row=2, type="category", showticklabels=False, showgrid=False)
    figure.update_xaxes(row=2, col=(columns + 1) // 2, title="predicted label")
    until = max(edges[-1], len(film.served))
    return figure.update_xaxes(row=1, showgrid=False, title="training jobs at the server", range=[edges[0], until])


# Early exits

HEIGHT_PX, MAP_PX = 340, 300
THRESHOLDS = 21
STAR = {"symbol": "star", "size": 14}
REST = "other labels"
COLUMNS = [
    *columns_of("summary", "device_accuracy", "server_accuracy", "hybrid_accuracy"),
    Column("on seen labels", "hybrid_seen", display.percent, more_is_better=True),
    Column("on unseen labels", "hybrid_unseen", display.percent, more_is_better=True),
    # Less is offloaded where the devices know more.
    *columns_of("summary", "offload_probability"),
]
EXITS = (
    "A device answers by itself where the entropy of its exit is below a threshold, and offloads the "
    "rest. The hybrid accuracy, drawn as a star, is that of an oracle, which knows the best of a few "
    "thresholds for every client; HARMONY reports this number. {unseen}In the figure of accuracy against "
    "offloading, one threshold for all clients falls from left to right. Where a line is higher than "
    "both its ends, devices and server know different things, and together they answer best (the "
    "clients' models on their own test sets, means over clients; {bands})."
)
UNSEEN = "The steeper a line falls with ρ, the more its devices know only their own labels. "


@dataclass(frozen=True)
class ExitAnswers:
    """Answers of the models of one variant; a row per seed, or several, means over clients.

    Attributes:
        achieved: as `metrics.exit_metrics.achieved` gives it.
        by_rho: the same on test sets with fewer samples of unseen labels (`rho`); empty if these are of another kind.
        by_threshold: as `metrics.exit_metrics.trade_off` gives it, from all at the server to all on the devices.
    """

    variant: ShownVariant
    achieved: pd.DataFrame
    by_rho: pd.DataFrame
    by_threshold: pd.DataFrame


def exits(frames: Frames) -> list[ExitAnswers]:
    """List the exits of every variant whose answers were recorded; none if no device has an exit."""
    found = []
    for variant, summary in of_each(frames.summary, frames.variants):
        answers = variant.run.rows("answers", variant=variant.name)
        if answers.empty:
            continue
        n_labels = frames.labels.loc[frames.labels["variant"] == variant.label, "label"].nunique()
        # Thresholds by which more and more samples stay on the device, from none to all.
        entropy = answers.loc[np.isfinite(answers["entropy"]), "entropy"]
        thresholds = [0.0, *entropy.quantile(np.linspace(0, 1, THRESHOLDS)).unique(), math.inf]
        by_rho = achieved_by_rho(answers, summary["rho"].max(), n_labels)
        by_threshold = trade_off(answers, thresholds).reset_index()
        found.append(ExitAnswers(variant, achieved(answers, n_labels), by_rho, by_threshold))
    return found if any(one.achieved["device_accuracy"].notna().any() for one in found) else []


def exit_panels(frames: Frames) -> list[Panel]:
    """The panel on early exits, if devices have any."""
    found, drawings = exits(frames), []
    if not found:
        return []
    unseen = any(len(one.by_rho) for one in found)
    if unseen:
        drawings.append(("Hybrid accuracy against unseen labels", partial(accuracy_by_rho, found)))
    drawings.append(("Accuracy against offloading", partial(accuracy_by_offload, found)))
    if frames.rounds.dropna(subset="hybrid_accuracy").groupby(["variant", "seed"]).size().max() > 1:
        over_time = partial(against, frames, "hybrid_accuracy", TIME)
        drawings.append((f"Hybrid accuracy against {frames.clock}", over_time))
    bands = figures.over_seeds(frames.n_seeds, len(found) <= MAX_NARROW_BANDS)
    caption = EXITS.format(unseen=UNSEEN if unseen else "", bands=bands)
    return [Panel("Early exits", caption, drawings, len(drawings), [exits_table(found)])]


def exits_table(found: Sequence[ExitAnswers]) -> Table:
    """Medians over seeds and their spread."""
    return by_variant(COLUMNS, [(one.variant, one.achieved) for one in found])


def accuracy_by_rho(found: Sequence[ExitAnswers]) -> go.Figure:
    """Hybrid accuracy at the oracle's thresholds against the share of unseen labels, median ± over seeds."""
    of = [(one.variant, one.by_rho) for one in found]
    figure = figures.curves(of, "rho", "hybrid_accuracy", "%{y:.1f} % at ρ = %{x:.2g}", height_px=HEIGHT_PX)
    figure.update_xaxes(title="ρ: unseen samples per seen one", rangemode="tozero")
    return figure.update_yaxes(title="hybrid accuracy (%)")


def accuracy_by_offload(found: Sequence[ExitAnswers]) -> go.Figure:
    """Accuracy against what is offloaded, as one threshold for all clients rises; stars are the oracle's."""
    hover = "%{y:.1f} % with %{x:.0f} % offloaded"
    of = [
        (one.variant, one.by_threshold.assign(offloaded=100 * one.by_threshold["offload_probability"])) for one in found
    ]
    figure = figures.curves(of, "offloaded", "accuracy", hover, by="threshold", height_px=HEIGHT_PX)
    for one in found:
        best = 100 * one.achieved[["offload_probability", "hybrid_accuracy"]].median()
        x, y = [best["offload_probability"]], [best["hybrid_accuracy"]]
        said = f"oracle: {hover}<extra>{one.variant.label}</extra>"
        figures.marks(figure, one.variant, x, y, said, marker=STAR, showlegend=False)
    figures.entry(figure, "oracle's thresholds", {**STAR, "color": style.INK, "line": figures.WHITE_EDGE})
    figure.update_xaxes(title="offloaded (%)", range=[-3, 103])
    return figure.update_yaxes(title="accuracy (%)")


def silhouette(frames: Frames, variant: ShownVariant) -> Markup:
    """The variant and its silhouette score, the mean over samples: median ± over seeds."""
    rows = frames.representations[frames.representations["variant"] == variant.label]
    scores = rows.groupby("seed")["silhouette"].mean()
    if not math.isfinite(scores.median()):
        return variant.html
    spread = f" ± {scores.std():.2f}" if len(scores) > 1 else ""
    return variant.html + f": silhouette {scores.median():.2f}{spread}".replace("-", "−")


def scatter(frames: Frames, variant: ShownVariant) -> go.Figure:
    """The first seed's samples where t-SNE put them, coloured by label."""
    rows = variant.first_seed(frames.representations)
    names = label_names(frames, variant)
    figure = figures.canvas(MAP_PX)
    coloured = dict(zip(sorted(names.index), style.LABEL_COLOURS, strict=False))
    rest = rows[~rows["label"].isin(list(coloured))]
    shown = [(REST, style.MUTED, rest)]
    shown += [(names[label], colour, rows[rows["label"] == label]) for label, colour in coloured.items()]
    for name, colour, dots in shown:
        if len(dots):
            figure.add_scatter(
                x=dots["x"].to_numpy(), y=dots["y"].to_numpy(), mode="markers", name=name,
                text=list(dots["label"].map(names)), customdata=dots[["client", "silhouette"]].to_numpy(),
                marker={"symbol": "circle", "color": colour, "size": 6, "opacity": 0.85},
                hovertemplate="%{text}, client %{customdata[0]}, silhouette %{customdata[1]:.2f}<extra></extra>",
            )  # fmt: skip
    frame = {"showgrid": False, "showticklabels": False, "mirror": True}
    return figure.update_xaxes(frame).update_yaxes(frame, scaleanchor="x")


mapped = partial(knowing, column="sample", table="representations")

representation_panels: Declared[Frames] = Declared(
    "Inputs of the last layer",
    "Each dot is a test sample, placed by its input to the last layer. The farther apart the colours are, the easier "
    "it is for that layer to tell the labels apart. Each sample goes through the client-side submodel of one client, "
    "then through the rest. t-SNE keeps neighbours together; distances between far groups mean nothing. The silhouette "
    "is that of the inputs themselves: 1 where labels lie far apart, 0 or less where they mix (drawn: the first seed; "
    "silhouettes: medians over seeds ± standard deviation).",
    lambda frames: [(silhouette(frames, variant), partial(scatter, frames, variant)) for variant in mapped(frames)],
    columns=3,
)
