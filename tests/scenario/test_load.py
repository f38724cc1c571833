"""From a scenario file to variants and back, as a user goes through it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.load import digest, dump, dump_study, load, parse
from sfl_sim.scenario.sections import Scenario
from sfl_sim.scenario.yaml_text import read_value

PAPER = """\
# Which order costs what?
name: orders
seed: 3
data: {name: digits, partition: {kind: dominant_label, p: 0.9}}
clients: {compute: phones, network: 4g}
server:
  order: fcfs
train:
  rounds: 5
  lr: 1e-3
grid:
  method.name: [splitfed_v2, hydra]
  server.order:
  - fcfs
  - cyclic
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a scenario to the file that is called a.yaml from here."""
    monkeypatch.chdir(tmp_path)

    def write(text):
        (tmp_path / "a.yaml").write_text(text)
        return "a.yaml"

    return write


def error_of(path, *overrides):
    with pytest.raises(ScenarioError) as caught:
        load(path, overrides)
    return caught.value


# --- what a user gets ---------------------------------------------------------------------------------------


def test_a_file_becomes_a_study(write):
    study = load(write(PAPER))

    assert study.name == study.base.name == "orders"
    assert study.base.train.lr == 0.001
    assert study.base.grid == {"method.name": ["splitfed_v2", "hydra"], "server.order": ["fcfs", "cyclic"]}
    assert [variant.name for variant in study.variants] == [
        "splitfed_v2, fcfs",
        "splitfed_v2, cyclic",
        "hydra, fcfs",
        "hydra, cyclic",
    ]
    last = study.variants[-1].scenario
    assert (last.method.name, last.server.order, last.train.rounds) == ("hydra", "cyclic", 5)
    assert (last.name, last.seed, last.repeats, last.grid) == ("orders", 3, 1, {})


def test_a_scenario_without_a_name_has_that_of_its_file(write):
    assert load(write("seed: 1")).name == "a"
    assert load(write("name: null")).base.name == "a"
    assert parse({}).name == "scenario"
    assert parse({}, name="mine").variants[0].scenario.name == "mine"
    assert parse({"name": "yours"}, name="mine").name == "yours"
    assert (error_of(write("name: ''")).key, error_of(write("name: ''")).line) == ("name", 1)


def test_without_a_grid_the_method_names_the_variant(write):
    (variant,) = load(write("method: {name: smofi}")).variants

    assert variant.name == "smofi"


def test_repeats_are_seeds_that_share_the_name():
    study = parse({"seed": 7, "repeats": 3, "grid": {"model.cut": [1, 2]}})

    assert [(variant.name, variant.scenario.seed) for variant in study.variants] == [
        (name, seed) for name in ("cut=1", "cut=2") for seed in (7, 8, 9)
    ]
    assert study.base.repeats == 3


def test_every_seed_of_a_study_is_one_that_a_scenario_may_have():
    assert parse({"seed": 2**31 - 3, "repeats": 3}).variants[-1].scenario.seed == 2**31 - 1
    with refused("seed", found=2**31 - 2):
        parse({"seed": 2**31 - 2, "repeats": 3})


def test_a_list_of_grids_gives_each_method_its_own_options():
    study = parse({"grid": [{"model.cut": [1, 2]}, {"method": [{"name": "hydra", "groups": 4}], "model.cut": 3}]})

    assert [variant.name for variant in study.variants] == ["cut=1", "cut=2", "hydra, groups=4, cut=3"]
    assert [variant.scenario.method.options for variant in study.variants] == [{}, {}, {"groups": 4}]


def test_a_scenario_from_python_is_as_good_as_a_mapping():
    assert parse(Scenario(seed=4)) == parse({"seed": 4})


def test_studies_and_variants_cannot_be_changed():
    study = parse({})

    with pytest.raises(AttributeError):
        study.name = "other"
    with pytest.raises(AttributeError):
        study.variants[0].name = "other"


# --- options on the command line ----------------------------------------------------------------------------


def test_options_on_the_command_line_have_the_last_word(write):
    file = write(PAPER)
    study = load(
        file,
        ["train.lr=1e-2", "clients.network.scale = 0.25", "method.groups=[1, 2]", "grid={}", "name=mine"],
    )

    (variant,) = study.variants
    assert study.name == "mine"
    assert variant.scenario.train.lr == 0.01
    assert variant.scenario.train.rounds == 5
    assert (variant.scenario.clients.network.profile, variant.scenario.clients.network.scale) == ("4g", 0.25)
    assert variant.scenario.method.options == {"groups": [1, 2]}


def test_the_last_of_equal_options_counts(write):
    assert load(write("seed: 1"), ["seed=2", "seed=3"]).base.seed == 3


def test_the_grid_can_be_extended_on_the_command_line(write):
    assert len(load(write(PAPER), ["grid.model.cut=[1, 2]"]).variants) == 8


def test_rates_on_the_command_line_displace_the_profile(write):
    compute = load(write(PAPER), ["clients.compute.macs_per_s=5e9"]).base.clients.compute

    assert (compute.profile, compute.macs_per_s) == (None, 5e9)


def test_an_option_of_another_kind_of_partition_comes_with_the_kind(write):
    partition = load(write(PAPER), ["data.partition.alpha=1", "data.partition.kind=dirichlet"]).base.data.partition

    assert partition.model_dump() == {"kind": "dirichlet", "alpha": 1.0, "by": "class", "min_size": 10}


@pytest.mark.parametrize(
    ("option", "key"),
    [
        ("train.lr", None),
        ("=3", None),
        ("train.weight_decay=fast", "train.weight_decay"),
        ("train.lr=", "train.lr"),
        ("model.cut=[1", "model.cut"),
        ("model.cutt=1", "model.cutt"),
        ("tran.lr=1", "tran"),
        ("model.cut.deep=1", "model.cut.deep"),
        ("clients.network.uplink_bps=1", "clients.network.uplink_bps"),
        ("grid.train.rounds=[0, 1]", "train.rounds"),
        ("grid.seed=[0, 1]", "grid.seed"),
    ],
)
def test_a_slip_on_the_command_line_is_told_as_such(write, option, key):
    error = error_of(write(PAPER), option)
    assert (error.file, error.line, error.key) == ("--set", None, key)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("text", "overrides"),
    [(PAPER, ["server.order=lifo"]), ("seed: 1", ["server.order=lifo", "grid={server.order: [fcfs, cyclic]}"])],
)
def test_an_option_that_the_grid_overrides_everywhere_is_refused(write, text, overrides):
    error = error_of(write(text), *overrides)
    assert (error.file, error.key) == ("--set", "server.order")


def test_an_option_that_the_grid_overrides_somewhere_has_an_effect_elsewhere(write):
    file = write("grid: [{server.order: cyclic}, {model.cut: 2}]")
    assert [v.scenario.server.order for v in load(file, ["server.order=lifo"]).variants] == ["cyclic", "lifo"]


def test_a_network_of_one_s_own_and_a_name_displace_each_other(write):
    model = load(write("model: {name: lenet5}"), ["model.factory=nets:make"]).base.model
    assert (model.name, model.factory) == (None, "nets:make")

    model = load(write("model: {factory: 'nets:make'}"), ["model.name=lenet5"]).base.model
    assert (model.name, model.factory) == ("lenet5", None)


# --- a user's slips in the file -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("", None, None),
        ("# nothing yet\n", None, None),
        ("- seed: 1\n", None, None),
        ("seed\n", None, None),
        ("seed: 1\nsede: 2\n", 2, "sede"),
        ("train:\n  lr: 0.1\n  rounds: 'two'\n", 3, "train.rounds"),
        ("clients:\n  count: 5\n\n  participation: 1.5\n", 4, "clients.participation"),
        ("seed: 1\ntrain:\n\trounds: 3\n", 3, None),
        ("clients:\n  network:\n    uplink_bps:\n    - 1e6\n    - 0\n", 5, "clients.network.uplink_bps.1"),
        ("clients:\n  compute:\n    profile: phones\n    macs_per_s: 1e9\n", 4, "clients.compute.macs_per_s"),
        ("data:\n  partition:\n    p: 0.5\n", 2, "data.partition.kind"),
        ("grid:\n  model.cut: [1, 2]\n  server.orders: [fcfs]\n", 3, "server.orders"),
        ("train: {rounds: 4}\ngrid:\n- train.lr: 0.1\n- train.rounds:\n  - 1\n  - x\n", 6, "train.rounds"),
        ("grid:\n  model.cut.x: [1]\n", 2, "model.cut.x"),
        ("seed: 1\ngrid:\n  seed: [1]\n", 3, "grid.seed"),
        ("grid:\n  model.cut: []\n", 2, "grid.model.cut"),
        ("seed: 1\ngrid:\n  model.cut: [1, 1]\n", 2, "grid"),
    ],
)
def test_a_slip_in_the_file_is_told_with_its_line(write, text, line, key):
    error = error_of(write(text))
    assert (error.file, error.line, error.key) == ("a.yaml", line, key)
    assert "\n" not in str(error)


def test_of_several_slips_the_first_in_the_file_is_told(write):
    file = write("train: {rounds: 3}\nserver: {order: 3}\nmodel: {cut: 0}\nsed: 1\n")

    error = error_of(file)
    assert (error.line, error.key, error.found) == (2, "server.order", 3)


def test_a_missing_file_is_told(write):
    assert str(error_of("gone.yaml")) == "gone.yaml: cannot be read: No such file or directory"


@pytest.mark.parametrize(
    ("values", "overrides", "file"), [({"train": {"rounds": 0}}, {}, None), ({}, {"train.rounds": 0}, "overrides")]
)
def test_a_slip_in_python_is_told_with_its_key(values, overrides, file):
    with refused("train.rounds", file=file, found=0):
        parse(values, overrides=overrides)


# --- what is found wrong later ------------------------------------------------------------------------------


def located(study, key, found=None):
    error = study.located(ScenarioError("unknown", key=key, found=found))
    return error.file, error.line


def test_an_object_that_an_argument_gives_is_told_without_the_overrides():
    study = parse({}, overrides={"data.factory": lambda: None, "train.rounds": 2})
    assert located(study, "data.factory") == (None, None)
    assert located(study, "train.rounds") == ("overrides", None)


def test_a_name_that_turns_out_unknown_is_located_by_its_key_or_the_next_above_it(write):
    study = load(write(PAPER), ["clients.network.latency_s=0.1"])

    assert located(study, "data.name") == ("a.yaml", 4)
    assert located(study, "clients.compute.profile", "phones") == ("a.yaml", 5)
    assert located(study, "clients.network.latency_s") == ("--set", None)
    assert located(study, "train.momentum") == ("a.yaml", 8)
    assert located(study, "report.target_accuracy") == located(study, None) == ("a.yaml", None)


def test_a_name_from_the_grid_is_located_in_the_grid(write):
    study = load(write(PAPER))

    assert located(study, "method.name", "hydra") == ("a.yaml", 12)
    assert located(study, "server.order", "fcfs") == ("a.yaml", 14)
    assert located(study, "server.order", "cyclic") == ("a.yaml", 15)


def test_in_a_list_of_grids_the_one_that_gave_the_value_is_located(write):
    study = load(write("grid:\n- train.lr: 0.1\n- method: {name: hidra, groups: 4}\n"))

    assert located(study, "method.name", "hidra") == located(study, "method.groups", 4) == ("a.yaml", 3)


# --- and back to text ---------------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
shares = st.floats(0, 1, exclude_min=True)
rates = st.floats(1e-3, 1e12) | st.lists(st.floats(1e-3, 1e12), min_size=1, max_size=3)
counts = st.integers(1, 10**7)
options = st.dictionaries(
    texts.filter(bool).filter(lambda key: key != "name"),
    st.none() | st.booleans() | st.integers(-(10**7), 10**7) | st.floats(-1e30, 1e30) | texts,
    max_size=3,
)


def section(**keys):
    return st.fixed_dictionaries({}, optional=keys)


scenarios = section(
    name=st.text("aß_-. ", min_size=1).filter(lambda name: not name.startswith(".")),
    seed=st.integers(0, 2**31 - 3),
    repeats=st.integers(1, 3),
    data=section(
        name=texts,
        root=texts | st.none(),
        augment=st.booleans(),
        partition=st.just({"kind": "iid"})
        | st.builds(lambda p, phi: {"kind": "dominant_label", "p": p, "phi": phi}, st.floats(0, 1), counts)
        | st.builds(lambda alpha: {"kind": "dirichlet", "alpha": alpha}, st.floats(1e-9, 1e9)),
    ),
    clients=section(
        participation=shares,
        compute=texts | st.floats(1e-3, 1e12) | st.fixed_dictionaries({"macs_per_s": rates}),
        network=texts | st.fixed_dictionaries({"uplink_bps": rates, "downlink_bps": rates}),
    ),
    server=section(workers=counts | st.just("unlimited"), burst=counts | st.sampled_from(["all", None])),
    method=options,
    train=section(lr=st.floats(1e-30, 1e30), drop_last=st.booleans()),
    grid=section(**{"model.cut": st.lists(counts, min_size=1, max_size=2, unique=True), "server.order": texts}),
    report=section(target_accuracy=shares | st.none()),
).map(lambda values: values | {"name": values.get("name", "study")})


@given(scenarios)
@settings(max_examples=40)
def test_what_is_dumped_loads_back_equal(values):
    study = parse(values)

    again = parse(read_value(dump_study(study)))
    assert again == study
    assert digest(again) == digest(study)
    for variant in study.variants:
        assert parse(read_value(dump(variant.scenario))).variants[0].scenario == variant.scenario


def test_a_dumped_study_is_a_file_that_runs_again(write):
    study = load(write(PAPER), ["repeats=2"])

    assert load(write(dump_study(study))) == study


def test_a_dumped_grid_over_rates_and_kinds_runs_again():
    study = parse(
        {
            "data": {"partition": {"kind": "dominant_label"}},
            "grid": {"clients.compute.macs_per_s": [1e9, 2e9], "data.partition.kind": ["iid", "dirichlet"]},
        }
    )

    assert parse(read_value(dump_study(study))) == study


def test_a_dump_has_all_keys_in_the_order_of_the_design():
    values = read_value(dump(Scenario(name="a")))

    assert [*values] == [*Scenario.model_fields]
    first = ["count", "participation", "choice", "overcommit"]
    assert list(values["clients"]) == [*first, "compute", "network", "power", "availability"]
    assert values["train"]["rounds"] == 100


def test_equal_scenarios_have_equal_digests_and_others_do_not():
    plain = parse({"seed": 1, "train": {"lr": 1, "rounds": 5}})

    assert digest(plain) == digest(parse({"train": {"rounds": 5, "lr": 1.0}, "seed": 1, "model": {"cut": 1}}))
    assert len(bytes.fromhex(digest(plain))) == 16
    others = [
        {"seed": 2},
        {"seed": 1, "repeats": 2},
        {"seed": 1, "grid": {"model.cut": [1]}},
        {"seed": 1, "method": {"k": 1}},
    ]
    assert len({digest(plain), *(digest(parse(other)) for other in others)}) == 5


def test_a_rate_and_a_ratio_of_the_server_replace_each_other():
    """In the grid and on the command line; in one file both are refused."""
    base = {"server": {"macs_per_s": 1e9}, "grid": {"server.speedup": [10, 20]}}
    assert [(v.scenario.server.speedup, v.scenario.server.macs_per_s) for v in parse(base).variants] == [
        (10.0, None),
        (20.0, None),
    ]
    (variant,) = parse({}, overrides=["server.macs_per_s=1e9"]).variants
    assert (variant.scenario.server.speedup, variant.scenario.server.macs_per_s) == (None, 1e9)
