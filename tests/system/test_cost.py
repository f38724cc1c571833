"""Time follows from MACs alone, or from a cost profile, which leaves the reference network its measured time."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from sfl_sim.errors import ScenarioError
from sfl_sim.models import price
from sfl_sim.models.part import sample_work
from sfl_sim.ops import KINDS, Work
from sfl_sim.system.cost import PlainProcessor, read_cost
from sfl_sim.system.profiles import available, find, read_table

COLUMNS = [
    *(f"{kind}_efficiency" for kind in KINDS),
    "overhead_macs",
    *(f"reference_{kind}_macs" for kind in KINDS),
    "reference_ops",
]
GOOD = dict(zip(COLUMNS, ["2", "0.25", "0.5", "1", "1000", "8000", "500", "1000", "0", "4"], strict=True))


def job(by_kind, n_ops):
    return Work(sum(by_kind), by_kind, n_ops)


def write(path, *rows):
    path.write_text("\n".join([",".join(rows[0]), *(",".join(row.values()) for row in rows)]))
    return path


def shipped_reference():
    finer = ("pointwise_macs", "grouped_macs", "moved", "weights", "padded")
    table = read_table(find("costs", "ncnn", ""), [*COLUMNS, *(f"reference_{each}" for each in finer)], "")
    *macs, n_ops = (float(table.numbers(column)[0]) for column in COLUMNS[-5:])
    pointwise, grouped, moved, weights, padded = (float(table.numbers(f"reference_{each}")[0]) for each in finer)
    plain = job((macs[0], macs[1], macs[2], macs[3]), n_ops)
    return plain._replace(finer=(pointwise, grouped, moved, 0), weights=weights, padded=padded)


@given(macs=st.integers(0, 10**15) | st.floats(0, 1e15), macs_per_s=st.floats(1e3, 1e15))
def test_plain_time_is_macs_over_rate_to_the_bit(macs, macs_per_s):
    assert PlainProcessor(macs_per_s).seconds(job((macs, 0, 0, 0), 7)) == macs / macs_per_s
    assert read_cost(None).processor(macs_per_s) == PlainProcessor(macs_per_s)


@given(ms_per_frame=st.floats(0.1, 1e5))
@settings(max_examples=20)
def test_the_reference_network_takes_what_was_measured(ms_per_frame):
    cost, reference = read_cost("ncnn"), shipped_reference()
    assert cost.reference_macs == reference.macs
    seconds = cost.processor(reference.macs / (ms_per_frame / 1000)).seconds(reference)
    assert seconds == pytest.approx(ms_per_frame / 1000, rel=1e-12)


def test_the_reference_of_the_shipped_profile_is_mobilenet_v2_as_models_are_priced():
    from torchvision.models import mobilenet_v2

    layer, _ = price.price_of(mobilenet_v2().to("meta"), torch.zeros(1, 3, 224, 224, device="meta"))
    assert shipped_reference() == sample_work([layer])


def test_kinds_cost_by_their_efficiency_and_every_call_an_overhead(tmp_path):
    processor = read_cost(write(tmp_path / "own.csv", GOOD)).processor(9500.0)
    # The reference: 8000 / 2 + 500 / 0.25 + 1000 / 0.5 + 4 * 1000 = 12 000 for its 9500 MACs, which take 1 s.
    second = 12_000
    assert processor.seconds(job((8000, 500, 1000, 0), 4)) == pytest.approx(1)
    assert processor.seconds(job((100, 0, 0, 0), 0)) == pytest.approx(50 / second)
    assert processor.seconds(job((0, 100, 0, 0), 0)) == pytest.approx(400 / second)
    assert processor.seconds(job((0, 0, 100, 0), 0)) == pytest.approx(200 / second)
    assert processor.seconds(job((0, 0, 0, 100), 0)) == pytest.approx(100 / second)
    assert processor.seconds(job((0, 0, 0, 0), 3)) == pytest.approx(3000 / second)


FINER = {"pointwise_efficiency": "1", "grouped_efficiency": "0.1", "moved_macs": "3", "pointwise_backward": "3"}


def test_a_profile_may_price_finer_kinds_and_moved_data(tmp_path):
    of_reference = {"reference_pointwise_macs": "6000", "reference_grouped_macs": "0", "reference_moved": "500"}
    processor = read_cost(write(tmp_path / "own.csv", GOOD | FINER | of_reference)).processor(9500.0)
    # The reference: 2000 / 2 + 6000 / 1 + 500 / 0.25 + 1000 / 0.5 + 4 * 1000 + 500 * 3 = 16 500.
    second = 16_500
    assert processor.seconds(job((8000, 500, 1000, 0), 4)._replace(finer=(6000, 0, 500, 0))) == pytest.approx(1)
    conv, pointwise, grouped = (
        job((100, 0, 0, 0), 0)._replace(finer=(*each, 0, 0)) for each in ((0, 0), (100, 0), (0, 100))
    )
    assert [second * processor.seconds(work) for work in (conv, pointwise, grouped)] == pytest.approx([50, 100, 1000])
    backward = job((200, 0, 0, 0), 0)._replace(finer=(200, 0, 0, 200))  # counted as two forward passes
    assert second * processor.seconds(backward) == pytest.approx(300)


def test_a_profile_may_price_weights_that_a_call_reads_and_channels_that_fill_up_vectors(tmp_path):
    more = {"weight_macs": "2", "reference_weights": "1000", "padded_macs": "0.5", "reference_padded": "4000"}
    processor = read_cost(write(tmp_path / "own.csv", GOOD | more)).processor(9500.0)
    second = 12_000 + 2 * 1000 + 0.5 * 4000
    assert processor.seconds(job((0, 0, 0, 0), 0)._replace(weights=300)) == pytest.approx(600 / second)
    assert processor.seconds(job((0, 0, 0, 0), 0)._replace(padded=300)) == pytest.approx(150 / second)
    batch = job((0, 0, 0, 0), 0)._replace(weights=300, padded=300).of_batch(4)
    assert processor.seconds(batch) == pytest.approx((600 + 4 * 150) / second)  # weights are read once a call


def test_a_profile_may_price_what_an_optimiser_s_step_reads_and_writes(tmp_path):
    processor = read_cost(write(tmp_path / "own.csv", GOOD | {"update_macs": "3"})).processor(9500.0)
    assert processor.seconds(job((0, 0, 0, 0), 0)._replace(updated=100)) == pytest.approx(300 / 12_000)


@pytest.mark.parametrize("cost", [None, "ncnn", "phones", "tflite", "pytorch_mobile", "onnxruntime"])
def test_without_columns_for_it_nothing_finer_changes_the_price(cost):
    processor, work = read_cost(cost).processor(1e9), job((1e9, 1e7, 1e6, 0), 50)
    assert processor.seconds(work._replace(updated=1e9)) == processor.seconds(work)
    if cost is None:
        assert processor.seconds(work._replace(finer=(1e8, 1e8, 1e7, 1e8))) == processor.seconds(work)


def test_macs_is_the_name_of_the_plain_cost():
    assert read_cost("macs") == read_cost(None)


@pytest.mark.parametrize(
    ("slip", "line"),
    [
        (
            {"conv_efficiency": "0"},
            r":2: clients.compute.cost: column 'conv_efficiency' .*'0'; allowed: a number above 0",
        ),
        ({"dense_efficiency": "fast"}, r":2: .*column 'dense_efficiency' .*'fast'; allowed: a number"),
        ({"overhead_macs": "-1"}, r":2: .*column 'overhead_macs' .*'-1'; allowed: a number, 0 or above"),
        ({"reference_ops": ""}, r":2: .*column 'reference_ops' .*allowed: a number"),
        (dict.fromkeys(COLUMNS[-5:-1], "0"), r":2: .*column 'reference_conv_macs' .*allowed: MACs above 0"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path, slip, line):
    with pytest.raises(ScenarioError, match=line) as error:
        read_cost(write(tmp_path / "own.csv", GOOD | slip))
    assert "\n" not in str(error.value)


def test_a_table_has_all_columns_and_one_row(tmp_path):
    with refused("clients.compute.cost", says="own.csv:3"):
        read_cost(write(tmp_path / "own.csv", GOOD, GOOD))
    with refused("clients.compute.cost", says="'reference_ops'"):
        read_cost(write(tmp_path / "own.csv", {column: GOOD[column] for column in COLUMNS[:-1]}))


def test_an_unknown_profile_is_refused_with_the_shipped_ones():
    with refused("clients.compute.cost", found="ncn"):
        read_cost("ncn")


@pytest.mark.parametrize("cost", ["ncnn", "onnxruntime", "phones", "tflite", "torch"])
def test_a_shipped_profile_says_where_it_comes_from_and_how_far_the_shares_of_first_layers_are_off(cost):
    text = find("costs", cost, "").read_text(encoding="utf-8")
    header = dict(line.removeprefix("# ").split(": ", 1) for line in text.splitlines() if line.startswith("#"))
    assert set(header) == {"what", "source", "unit", "n", "derived", "judged", "licence", "caution"}
    says = r" x (?:1|16) (\d\.\d+) \(nine of ten below (\d\.\d+); at worst (\d\.\d+): (\w+)@"
    found = re.findall(says, header["judged"])
    assert found
    for median, ninth, worst, network in found:
        assert 1 <= float(median) <= 1.3
        assert float(median) <= float(ninth) <= float(worst)
        assert network.islower()


def test_the_profile_of_phones_says_how_well_it_predicts_and_refers_to_mobilenet_v2():
    text = find("costs", "phones", "").read_text(encoding="utf-8")
    header = dict(line.removeprefix("# ").split(": ", 1) for line in text.splitlines() if line.startswith("#"))
    says = {"of the fit with its family": {}, "each source left out": {}, "plain MACs": {}}
    for what, errors in says.items():
        text = header["derived"].split(f"{what}: ")[1].split("; each")[0].split("; plain")[0]
        errors |= {source: float(error) for source, error in re.findall(r"(\w+) (\d\.\d+) \(", text)}
    family, source, plain = says.values()
    assert set(family) == set(source) == set(plain) == {"ncnn", "onnxruntime", "torch", "tflite", "pytorch_mobile"}
    assert family["ncnn"] <= 0.2
    assert all(family[each] < plain[each] for each in family if each != "onnxruntime")  # where plain MACs do well
    assert read_cost("phones").reference_macs == shipped_reference().macs


def test_the_table_of_errors_has_every_cost_profile_at_both_nodes():
    table = read_table(find("measurements", "errors", ""), ["cost", "node", "network", "factor"], "")
    found = set(zip(table.columns["cost"], table.columns["node"], strict=True))
    assert found == {(cost, node) for cost in ("macs", *available("costs")) for node in ("clients", "server")}
    assert (table.numbers("factor") > 0).all()
