"""From a scenario file to variants and back, as a user goes through it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.load import Study, digest, dump, dump_study, load, parse
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


def refused(path, *overrides):
    with pytest.raises(ScenarioError) as caught:
        load(path, overrides)
    return str(caught.value)


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
    assert refused(write("name: ''")).startswith("a.yaml:1: name: cannot name a folder (found ''; allowed: 1 to 100 ")


def test_without_a_grid_the_method_names_the_variant(write):
    (variant,) = load(write("method: {name: smofi}")).variants

    assert variant.name == "smofi"


def test_repeats_are_seeds_that_share_the_name():
    study = parse({"seed": 7, "repeats": 3, "grid": {"model.cut": [1, 2]}})

    assert [(variant.name, variant.scenario.seed) for variant in study.variants] == [
        ("cut=1", 7),
        ("cut=1", 8),
        ("cut=1", 9),
        ("cut=2", 7),
        ("cut=2", 8),
        ("cut=2", 9),
    ]
    assert study.base.repeats == 3


def test_every_seed_of_a_study_is_one_that_a_scenario_may_have():
    assert parse({"seed": 2**31 - 3, "repeats": 3}).variants[-1].scenario.seed == 2**31 - 1
    with pytest.raises(ScenarioError, match=r"seed: is too large \(found 2147483646; allowed: at most 2,147,483,645 "):
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
    ("option", "line"),
    [
        ("train.lr", "--set: must be KEY=VALUE (found 'train.lr')"),
        ("=3", "--set: must be KEY=VALUE (found '=3')"),
        ("train.weight_decay=fast", "--set: train.weight_decay: must be a number of at least 0 (found 'fast')"),
        ("train.lr=", "--set: train.lr: must be a number above 0, but is empty"),
        (
            "model.cut=[1",
            "--set: model.cut: is not YAML: expected ',' or ']', but got '<stream end>' (column 3) (found '[1')",
        ),
        (
            "model.cutt=1",
            "--set: model.cutt: unknown key (found 'cutt'; allowed: name, factory, path, init, cut; "
            "did you mean 'cut'?)",
        ),
        ("model.cut.deep=1", "--set: model.cut.deep: unknown key, cut holds a value"),
        ("clients.network.uplink_bps=1", "--set: clients.network.uplink_bps: needs downlink_bps too"),
        ("grid.train.rounds=[0, 1]", "--set: train.rounds: must be a whole number of at least 1 (found 0)"),
        ("grid.seed=[0, 1]", "--set: grid.seed: cannot vary in a grid, use repeats for several seeds"),
    ],
)
def test_a_slip_on_the_command_line_is_told_as_such(write, option, line):
    assert refused(write(PAPER), option) == line


def test_an_option_that_the_grid_overrides_everywhere_is_refused(write):
    assert (
        refused(write(PAPER), "server.order=lifo")
        == "--set: server.order: has no effect, since the grid sets it in every variant; override the grid"
    )

    said = refused(write("seed: 1"), "server.order=lifo", "grid={server.order: [fcfs, cyclic]}")
    assert said.startswith("--set: server.order: has no effect")

    file = write("grid: [{server.order: cyclic}, {model.cut: 2}]")
    assert [v.scenario.server.order for v in load(file, ["server.order=lifo"]).variants] == ["cyclic", "lifo"]


def test_a_network_of_one_s_own_and_a_name_displace_each_other(write):
    model = load(write("model: {name: lenet5}"), ["model.factory=nets:make"]).base.model
    assert (model.name, model.factory) == (None, "nets:make")

    model = load(write("model: {factory: 'nets:make'}"), ["model.name=lenet5"]).base.model
    assert (model.name, model.factory) == ("lenet5", None)


def test_a_misspelt_section_on_the_command_line(write):
    said = refused(write(PAPER), "tran.lr=1")

    assert said.startswith("--set: tran: unknown key (found 'tran'; allowed: name, seed,")
    assert said.endswith("did you mean 'train'?)")


# --- a user's slips in the file -----------------------------------------------------------------------------

TOP = (
    "name, seed, repeats, data, model, clients, server, servers, method, train, wire, lora, privacy, grid, report, "
    "serving, benchmark"
)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", f"a.yaml: must be a mapping, but is empty (allowed: the keys {TOP})"),
        ("# nothing yet\n", f"a.yaml: must be a mapping, but is empty (allowed: the keys {TOP})"),
        ("- seed: 1\n", f"a.yaml: must be a mapping (found [{{'seed': 1}}]; allowed: the keys {TOP})"),
        ("seed\n", f"a.yaml: must be a mapping (found 'seed'; allowed: the keys {TOP})"),
        (
            "seed: 1\nsede: 2\n",
            f"a.yaml:2: sede: unknown key (found 'sede'; allowed: {TOP}; did you mean 'seed'?)",
        ),
        (
            "train:\n  lr: 0.1\n  rounds: '2'\n",
            "a.yaml:3: train.rounds: must be a whole number of at least 1 (found '2')",
        ),
        (
            "clients:\n  count: 5\n\n  participation: 1.5\n",
            "a.yaml:4: clients.participation: must be a number above 0 and at most 1 (found 1.5)",
        ),
        (
            "seed: 1\ntrain:\n\trounds: 3\n",
            "a.yaml:3: is not YAML: found a tab, indent with spaces (column 1)",
        ),
        (
            "clients:\n  network:\n    uplink_bps:\n    - 1e6\n    - 0\n    downlink_bps: 1e6\n",
            "a.yaml:5: clients.network.uplink_bps.1: must be a number above 0 (found 0)",
        ),
        (
            "clients:\n  compute:\n    profile: phones\n    macs_per_s: 1e9\n",
            "a.yaml:4: clients.compute.macs_per_s: cannot be given together with a profile (found 1000000000.0)",
        ),
        (
            "data:\n  partition:\n    p: 0.5\n",
            "a.yaml:2: data.partition.kind: is missing (allowed: iid, dominant_label, sharding, label_shards, "
            "dirichlet, quantity_skew, natural, indices)",
        ),
        (
            "grid:\n  model.cut: [1, 2]\n  server.orders: [fcfs]\n",
            "a.yaml:3: server.orders: unknown key (found 'orders'; allowed: speedup, macs_per_s, cost, call_s, "
            "workers, order, burst, max_wait_s, recorded, include_model_exchange; did you mean 'order'?)",
        ),
        (
            "train: {rounds: 4}\ngrid:\n- train.lr: 0.1\n- train.rounds:\n  - 1\n  - x\n",
            "a.yaml:6: train.rounds: must be a whole number of at least 1 (found 'x')",
        ),
        ("grid:\n  model.cut.x: [1]\n", "a.yaml:2: model.cut.x: unknown key, cut holds a value"),
        (
            "seed: 1\ngrid:\n  seed: [1]\n",
            "a.yaml:3: grid.seed: cannot vary in a grid, use repeats for several seeds",
        ),
        ("grid:\n  model.cut: []\n", "a.yaml:2: grid.model.cut: has no values"),
        (
            "seed: 1\ngrid:\n  model.cut: [1, 1]\n",
            "a.yaml:2: grid: two configurations of the grid are equal (found 'cut=1')",
        ),
    ],
)
def test_a_slip_in_the_file_is_told_with_its_line(write, text, line):
    assert refused(write(text)) == line


def test_of_several_slips_the_first_in_the_file_is_told(write):
    file = write("train: {rounds: 3}\nserver: {order: 3}\nmodel: {cut: 0}\nsed: 1\n")

    assert refused(file) == "a.yaml:2: server.order: must be text (found 3)"


def test_a_missing_file_is_told(write):
    assert refused("gone.yaml") == "gone.yaml: cannot be read: No such file or directory"


def test_a_slip_in_python_is_told_with_its_key():
    with pytest.raises(ScenarioError) as caught:
        parse({"train": {"rounds": 0}})

    assert str(caught.value) == "train.rounds: must be a whole number of at least 1 (found 0)"

    with pytest.raises(ScenarioError, match=r"^overrides: train\.rounds: must be a whole number of at least 1"):
        parse({}, overrides={"train.rounds": 0})


# --- what is found wrong later ------------------------------------------------------------------------------


def located(study: Study, key, found=None):
    return str(study.located(ScenarioError("unknown", key=key, found=found)))


def test_a_name_that_turns_out_unknown_is_located(write):
    study = load(write(PAPER), ["clients.network.latency_s=0.1"])

    assert located(study, "data.name") == "a.yaml:4: data.name: unknown"
    assert located(study, "clients.compute.profile", "phones").startswith("a.yaml:5: clients.compute.profile: unknown")
    assert located(study, "clients.network.latency_s") == "--set: clients.network.latency_s: unknown"
    assert located(study, "train.momentum") == "a.yaml:8: train.momentum: unknown"
    assert located(study, "report.target_accuracy") == "a.yaml: report.target_accuracy: unknown"
    assert located(study, None) == "a.yaml: unknown"


def test_a_name_from_the_grid_is_located_in_the_grid(write):
    study = load(write(PAPER))

    assert located(study, "method.name", "hydra") == "a.yaml:12: method.name: unknown (found 'hydra')"
    assert located(study, "server.order", "fcfs") == "a.yaml:14: server.order: unknown (found 'fcfs')"
    assert located(study, "server.order", "cyclic") == "a.yaml:15: server.order: unknown (found 'cyclic')"


def test_in_a_list_of_grids_the_one_that_gave_the_value_is_located(write):
    study = load(write("grid:\n- train.lr: 0.1\n- method: {name: hidra, groups: 4}\n"))

    assert located(study, "method.name", "hidra") == "a.yaml:3: method.name: unknown (found 'hidra')"
    assert located(study, "method.groups", 4) == "a.yaml:3: method.groups: unknown (found 4)"


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
@settings(max_examples=80, deadline=None)
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

    assert ", ".join(values) == TOP
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
