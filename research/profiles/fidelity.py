"""Writes the tables of research/results/fidelity.md from the shipped costs, `cost_model.py` and `parts.py`.

    python -m research.profiles.fidelity

A table is found by its heading and written whole, so that no row of another one slips in.
"""

import json
from pathlib import Path

import pandas as pd

from research.profiles.ncnn_networks import HERE

FOUND = Path(__file__).parent / "results"
PAGE = FOUND.parents[2] / "research/results/fidelity.md"
FAMILIES = {
    "alexnet": "AlexNet", "convnext": "ConvNeXt", "densenet": "DenseNet", "efficientnet": "EfficientNet",
    "googlenet": "GoogLeNet", "inception": "Inception", "mnasnet": "MNASNet", "mobilenet": "MobileNet-V1",
    "mobilenet_v3": "MobileNet-V3", "regnet": "RegNet", "resnet": "ResNet", "resnext": "ResNeXt",
    "shufflenet": "ShuffleNet", "squeezenet": "SqueezeNet", "swin": "Swin", "vgg": "VGG", "vit": "ViT",
}  # fmt: skip
SOURCES = ("ncnn", "ncnn, phones alone", "onnxruntime", "torch", "tflite", "pytorch_mobile")
PROFILES = ("phones", "ncnn", "tflite", "pytorch_mobile", "onnxruntime", "torch")
PRICES = {
    "a MAC of a convolution": "conv_efficiency", "of a 1x1 convolution": "pointwise_efficiency",
    "of a grouped one": "grouped_efficiency", "of a depthwise one": "depthwise_efficiency",
    "of a dense layer or attention": "dense_efficiency", "of channels that fill up vectors": "padded_macs",
    "an element that moves": "moved_macs", "a weight that a call reads": "weight_macs", "a call": "overhead_macs",
}  # fmt: skip


def rows(name):
    """Read what a script found."""
    return pd.DataFrame(json.loads((FOUND / f"{name}.json").read_text(encoding="utf-8"))["rows"])


def latencies():
    """Give the errors of whole networks, by costs and source."""
    found = rows("cost_model_phones").set_index(["costs", "source"])
    own = {source: source.removesuffix(", phones alone") for source in SOURCES}
    for name, left, of in (
        ("MACs alone (`macs`, the default)", "", dict.fromkeys(SOURCES, "macs")),
        ("costs for an unknown runtime (`phones`)", "a family", dict.fromkeys(SOURCES, "phones")),
        ("the same", "a source", dict.fromkeys(SOURCES, "phones, source left out")),
        ("**the runtime's own** (" + ", ".join(f"`{name}`" for name in PROFILES[1:]) + ")", "a family", own),
    ):
        each = (found.loc[of[source], source] for source in SOURCES)
        yield [name, left, *(f"{row['median']:.2f} ({row.low:.2f} to {row.high:.2f}); {row.p90:.2f}" for row in each)]


def families():
    """Give the signed errors of families."""
    found = rows("cost_model_phones_families").set_index(["family", "source"])
    asked = {"ncnn": ("macs", "phones", "ncnn"), "onnxruntime": ("macs", "phones"), "torch": ("macs", "phones")}
    for family, name in FAMILIES.items():
        cells = (found[each].get((family, source)) for source, costs in asked.items() for each in costs)
        yield [name, *("" if error is None else f"{error:+.2f}" for error in cells)]


def prices():
    """Give the shipped costs."""
    of = {name: pd.read_csv(HERE / "costs" / f"{name}.csv", comment="#").iloc[0] for name in PROFILES}
    for what, column in PRICES.items():
        each = [1 / row[column] if column.endswith("efficiency") else row[column] for row in of.values()]
        form = (
            "{:,.0f}"
            if column == "overhead_macs"
            else "{:.1f}"
            if column in ("moved_macs", "weight_macs")
            else "{:.2f}"
        )
        yield [what, *(form.format(price) for price in each)]


def shares(costs, before):
    """Give the errors of shares, with the cells that stand for the costs before."""
    for _, row in rows("parts").query("costs == @costs").iterrows():
        runtime = f"{row.runtime} x {row.batch}"
        if costs == "own" and row.runtime in ("mnn", "openvino"):
            continue
        told = (f"{row[f'share, {what}']:.2f}" for what in ("median", "ninth decile", "worst"))
        apart = f"{row['networks, median']:.2f}, {row['networks, worst']:.2f} ({row['worst pair']})"
        has_pairs = bool(row["worst pair"])
        yield [
            runtime,
            f"{', '.join(told)} ({row['worst part']})",
            before[runtime],
            *([apart, row.grouped] if has_pairs else "--"),
        ]


def tabled(page):
    """Put all tables into the page."""
    lines = page.split("\n")
    for heading, skip, make in (
        ("| cost | left out |", 0, lambda _: latencies()),
        ("| family |", 0, lambda _: families()),
        ("| in MACs of MobileNet-V2 ", 0, lambda _: prices()),
        ("| runtime x mini-batch |", 0, lambda before: shares("own", before)),
        ("| runtime x mini-batch |", 1, lambda before: shares("phones", before)),
    ):
        at = [n for n, line in enumerate(lines) if line.startswith(heading)][skip] + 2
        end = next(n for n in range(at, len(lines)) if not lines[n].startswith("|"))
        cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[at:end]]
        lines[at:end] = [f"| {' | '.join(row)} |" for row in make({row[0]: row[2] for row in cells if len(row) > 2})]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(tabled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
