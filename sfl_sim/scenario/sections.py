"""Sections of a scenario: every key with its default, its bounds and its meaning.

The docstring under a field is its description in the JSON Schema that editors show. Which methods, models,
data sets and orders exist is not known here; the composition root checks those names.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    JsonValue,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_before_validator_function

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.data import Data
from sfl_sim.scenario.fields import (
    TIER,
    Bare,
    ClientCsv,
    Concern,
    Correlation,
    Count,
    Decided,
    Natural,
    NonNegative,
    OnlyWith,
    Option,
    PerClient,
    Positive,
    PositiveShare,
    Section,
    Seed,
    Unless,
)
from sfl_sim.scenario.given import as_yaml
from sfl_sim.scenario.optional_sections import (
    Availability,
    Coding,
    Leakage,
    LoraSection,
    Overhead,
    PowerSection,
    Privacy,
    Shared,
    WireSection,
)
from sfl_sim.scenario.serving import Serving

OwnCode = Annotated[str, Field(pattern=":")]
"""Code of a user's own: package.module:name."""
Cut = Count | Annotated[str, Field(min_length=1)] | Annotated[float, Field(gt=0, lt=1)]
"""Layer after which a network is cut: its index, its name, or its relative depth."""


class ClientCuts(Section):
    """Cuts that differ between clients, or between rounds."""

    by: Literal["client", "device_speed", "random", "round", "greedy", "makespan", "median", "bandit"] | OwnCode
    """client: a value for each client; device_speed: one for each of equally large groups, slowest devices first;
    random: one drawn for each client, for good; round: one, drawn anew in every round, for all clients. Or a policy
    that chooses each client's before every round, by durations of the rounds before: greedy, makespan, median, bandit
    or one of your own, package.module:policy (docs/models.md#cuts-that-follow-from-times)."""
    values: Annotated[list[Cut], Field(min_length=1)]
    """Cuts: each a layer's index, its name, or its relative depth between 0 and 1; with a policy, clients begin at the
    first."""


class Init(Section):
    """Initial weights other than those drawn with the seed of the run."""

    one_of = (("run",), ("seed",))

    run: Annotated[str, Field(min_length=1)] | None = None
    """Folder of a finished run with one variant and one seed, whose final model is where training begins."""
    seed: Seed | None = None
    """Seed of the initial weights alone."""


class ModelSection(Section):
    """The network and where it is cut."""

    one_of = (("name",), ("factory",))

    name: str | None = "cnn_small"
    """Network; torchvision:NAME or timm:NAME is one of these libraries."""
    factory: str | None = None
    """Network of your own: package.module:make, where make(input_shape, n_labels) or make() gives an nn.Sequential, or
    is one. From Python also the object itself."""
    path: str | None = None
    """hf: folder of a language model in Hugging Face's format, with config.json and *.safetensors; or the file
    config.json alone, for timing. A model of torchvision or timm: file with its weights; null: random ones."""
    init: Init | None = None
    """Initial weights: a section; null means those of a folder in Hugging Face's format, or else drawn with the seed of
    the run."""
    cut: Cut | ClientCuts = 1
    """The layer after which the server takes over from the clients: its index, its name, or its relative depth, a
    number between 0 and 1; or a section, for clients or rounds that differ."""


class ThrottlingSection(Section):
    """Throttling of devices that get hot while they compute."""

    floor: Annotated[float, Field(ge=0.01, le=1)]
    """Share of its rate that a hot device keeps."""
    warm_up_s: Positive = 300.0
    """Time constant in seconds with which a device that computes gets hot."""
    cool_down_s: Positive = 300.0
    """Time constant in seconds with which a device that rests cools down."""


class Compute(Bare):
    """Speed of the clients' devices."""

    one_of = (("profile",), ("macs_per_s",))
    bare: ClassVar = {"string": "profile", "number": "macs_per_s"}

    profile: str | None = "ai_benchmark"
    """Measured devices that the clients are drawn from: a profile's name or file."""
    macs_per_s: Positive | PerClient | None = None
    """Multiply-accumulates per second: one rate for all clients, a list of one for each, or a CSV file."""
    scale: Positive = 1.0
    """Factor on every device's rate."""
    cost: str | None = None
    """Cost of layers: the name or file of a profile with a cost by kind of layer and an overhead per call; `macs` or
    null means MACs over MAC/s."""
    training_factor: Positive | PerClient | None = None
    """Factor on the time of training, since devices are measured by inference, in other software: one for all clients,
    or a list of one for each; null means what the profile says, or 1. A trained model in use takes no factor."""
    sample_s: NonNegative = 0.0
    """Seconds that a device takes to load each training sample, on top of computing."""
    jitter: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Coefficient of variation of the random, lognormal factor with mean 1 on the time of every step on a device."""
    throttling: ThrottlingSection | None = None
    """Throttling of hot devices: a section; null means none."""


class NetworkSection(Bare):
    """Rates and latency of the clients' links."""

    one_of = (("profile",), ("uplink_bps", "downlink_bps"))
    or_else = ("trace",)
    bare: ClassVar = {"string": "profile"}

    profile: str | None = "mobiperf"
    """Measured links that the clients are drawn from: a profile's name or file."""
    uplink_bps: Positive | PerClient | None = None
    """Bits per second from client to server: one rate for all clients, a list of one for each, or a CSV file with a
    row for each and a column of this name."""
    downlink_bps: Positive | PerClient | None = None
    """Bits per second from server to client: one rate for all clients, a list of one for each, or a CSV file."""
    trace: str | Annotated[list[str], Field(min_length=1)] | None = None
    """Variation of the rates over time: a trace's name or file, a list of one for each client, or a folder of which
    each client draws a file; null keeps them constant. With profile: null a trace keeps its own rates."""
    latency_s: NonNegative | Annotated[list[NonNegative], Field(min_length=1)] | ClientCsv = 0.0
    """Seconds that every message takes on top of its bytes: one number for all clients, a list of one for each, or a
    CSV file."""
    scale: Positive = 1.0
    """Factor on every link's rate."""
    up_down_correlation: Annotated[Correlation, Unless("profile", None)] = 1.0
    """Rank correlation of the uplink and the downlink that a client draws; 1 means one quantile for both. In the tests
    behind mobiperf it is about 0.5."""
    compute_correlation: Annotated[Correlation, Unless("profile", None)] = 0.0
    """Rank correlation of the uplinks that clients draw with the speeds of their devices."""
    overhead: Overhead | None = None
    """Bytes on the links beyond those of messages: a section with a share and bytes of each message; null: none."""
    shared: Shared | None = None
    """Links that clients share, beyond their own ones: a section with access points and a backhaul, or a graph; null
    means none."""


class ChoiceSection(Coding):
    """Choice of the clients that take part: its kind alone, or a section with its options."""

    kind: Annotated[str, Field(min_length=1)]
    """random: all equally likely; tiers: a tier of equally fast ones, then its clients; oort: those that learn much in
    little time; or one of your own: package.module:choose (docs/methods/choices.md)."""


class Clients(Section):
    """The clients."""

    count: Annotated[Count | None, Concern.DEALING, Decided.BY_THE_WORLD] = None
    """Number of clients; null means phi x labels with dominant_label and sharding, n_shards / shards with label_shards,
    all owners with natural, as many as there are lists with indices, else 10."""
    participation: PositiveShare = 1.0
    """Share of the clients that take part in a round."""
    choice: ChoiceSection | None = None
    """Choice of the clients that take part: random (null), tiers or oort, a section with its options, or one of your
    own. From Python also the function itself."""
    overcommit: Natural = 0
    """Number of clients that are asked beyond those that take part: wherever the server waits for all clients, the
    round goes on without the last ones."""
    compute: Annotated[Compute, Concern.SYSTEM, Decided.BY_THE_WORLD] = Compute()
    """Speed of the devices: a section, a profile's name, or multiply-accumulates per second."""
    network: Annotated[NetworkSection, Concern.SYSTEM, Decided.BY_THE_WORLD] = NetworkSection()
    """Rates of the links: a section, or a profile's name."""
    power: Annotated[PowerSection | None, Concern.SYSTEM, Decided.BY_THE_WORLD] = None
    """Power of devices and radios: a section; null leaves energy unknown."""
    availability: Annotated[Availability | None, Decided.BY_THE_WORLD] = None
    """Availability of clients, and treatment of those that go away: a section; null: all are always available."""


class StationSection(Section):
    """A server and its queue."""

    one_of = (("speedup",), ("macs_per_s",))

    speedup: Annotated[Positive | None, Concern.SYSTEM] = 100.0
    """Server/client compute ratio (gamma): a client's mean time per multiply-accumulate over the server's. The server
    then follows the devices that are drawn."""
    macs_per_s: Annotated[Positive | None, Concern.SYSTEM] = None
    """Multiply-accumulates per second of the server, whatever the devices are, in place of speedup."""
    cost: Annotated[str | None, Concern.SYSTEM, Decided.BY_THE_WORLD] = None
    """Cost of layers at the server: the name or file of a profile; null means as at the clients."""
    call_s: Annotated[NonNegative, Concern.SYSTEM, Decided.BY_THE_WORLD] = 0.0
    """Seconds that every call of the server takes on top of its computing: a job of training, or a batch of
    requests."""
    workers: Annotated[Count | Literal["unlimited"], Concern.SYSTEM] = 1
    """Number of server workers, each of which processes one job at a time."""
    order: Annotated[str, Concern.ORDER] = "fcfs"
    """Scheduling policy of methods whose clients bring their jobs to one server-side submodel; others have none."""
    burst: Annotated[Count | Literal["all"] | None, Concern.ORDER] = None
    """Number of consecutive jobs of a client that are served in one turn; null means the policy's default."""
    max_wait_s: Annotated[NonNegative | None, Concern.ORDER] = None
    """bounded_wait: maximum of seconds for which the server is held for the client whose turn it is."""
    recorded: Annotated[str | None, Concern.ORDER, OnlyWith("order", "recorded")] = None
    """recorded: the run's folder, or its ops.parquet, whose clients are served in the same sequence."""

    @field_validator("recorded")
    @classmethod
    def _is_a_table(cls, value: str | None) -> str | None:
        return value and (value if value.endswith(".parquet") else f"{value.rstrip('/')}/ops.parquet")


class Server(StationSection):
    """The server and its queue."""

    include_model_exchange: Annotated[bool, Concern.SYSTEM, Decided.BY_THE_WORLD] = True
    """Let the transfers of the client-side submodel (part-1) at the start and the end of a round take time."""


class Outages(Section):
    """Times in which servers are down."""

    profile: Annotated[str, Field(min_length=1)]
    """Availability of the servers: a profile's name or file, as for clients."""
    clients: Annotated[Literal["wait", "move", "drop"], Decided.BY_THE_USER] = "wait"
    """What becomes of the clients of a server that goes down: they wait until it is back; or those of a server that is
    down when a round begins go to the one with the fewest clients; or all of them drop out of the round, as if they had
    gone away themselves."""
    begins_at_h: Annotated[float, Field(ge=0, lt=24)] = 0.0
    """Local hour of the day at which the run begins."""


TierName = Annotated[str, Field(pattern=TIER)]


class TierSection(StationSection):
    """Servers between the clients, or the tier before, and the main server."""

    count: Annotated[int, Field(ge=1, le=9999)]
    """Number of its servers; to be given, so that a misspelled name makes no tier."""
    clients: (
        Literal["even", "speed", "nearest"]
        | Annotated[str, Field(pattern=":")]
        | Annotated[list[Annotated[int, Field(ge=1, le=9999)]], Field(min_length=1)]
    ) = "even"
    """Which of its servers serves which client: evenly many each, at random; equally much computing of the clients'
    devices each; the one with the least reach_s; a list of the server of each client, from 1; or a function of your
    own: package.module:assign, where assign(round, n_clients, n_servers) gives such a list for every round."""
    reach_s: Annotated[ClientCsv | None, Decided.BY_THE_WORLD] = None
    """CSV file with a row for each client, and a column for each server (edge1, edge2, ...): seconds that a message
    takes between the two, on top of its bytes and of the client's own latency."""
    cut: Cut | None = None
    """The layer after which the tier above takes over; null: its servers hold all layers that clients do not."""
    average_every: Count = 1
    """Number of rounds after which what its servers have learned is averaged."""
    backbone: Annotated[NetworkSection | None, Concern.SYSTEM, Decided.BY_THE_WORLD] = None
    """Links of its servers to the tier above: a section as for clients; null: they take no time."""
    outages: Annotated[Outages | None, Decided.BY_THE_WORLD] = None
    """Times in which its servers are down: a section; null: never."""


class MethodSection(Section):
    """The training method; all keys but `name` are the method's own options."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Option] = Field(init=False)

    name: str = "splitfed_v2"
    """Training method."""

    @property
    def options(self) -> dict[str, Any]:
        """The method's own options, as the scenario gives them."""
        return dict(self.__pydantic_extra__)


class Stop(Section):
    """Rules by which training ends before its last round; the first that applies ends it."""

    accuracy: PositiveShare | None = None
    """Accuracy with which training ends: that on the validation samples (data.validation), or else on the test set;
    none in a run that times only."""
    time_s: Positive | None = None
    """Simulated seconds after which no further round begins."""
    patience: Count | None = None
    """Number of rounds in a row without a better accuracy, of the same samples, with which training ends."""

    @model_validator(mode="after")
    def _has_a_rule(self) -> Stop:
        if self.accuracy is None and self.time_s is None and self.patience is None:
            raise ScenarioError("must not be empty without time_s and patience", key="accuracy")
        return self


class _OrName:
    """Marks a section in whose place its name may stand."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_before_validator_function(
            lambda value: {"name": value} if isinstance(value, str) else value, handler(source)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, handler(schema)]}


class BySpeed(Section):
    """Values by the speed of devices."""

    by: Literal["device_speed"]
    """The clients, ranked by device, form as many groups as there are values, the slowest first."""
    values: Annotated[list[Positive], Field(min_length=1)]
    """A value for each group."""


Optimizer = Literal["sgd", "nag", "adam", "adamw"] | OwnCode
HAS_MOMENTUM = OnlyWith("optimizer", "sgd", "nag")
"""Condition of a momentum: which optimizers have one."""


class ScheduleSection(Coding):
    """Schedule of the learning rate by round: its kind alone, or a section with its options.

    Options are the arguments of torch's scheduler; those that say how long it goes are all rounds unless given.
    """

    kind: Annotated[str, Field(min_length=1)]
    """step, multi_step, constant, linear, exponential, polynomial, cosine or cosine_restarts, as
    torch.optim.lr_scheduler has them; or one of your own: package.module:factor, where factor(round) gives the factor
    on the rate."""
    warmup_rounds: Natural = 0
    """Rounds in which the rate first grows in equal steps to its full size."""


class ServerTrain(Section):
    """What is different where the main server trains; a key that is null is as for clients."""

    lr: Positive | None = None
    """Learning rate of the first round."""
    optimizer: Optimizer | None = None
    """Optimizer."""
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Momentum of SGD."""
    weight_decay: NonNegative | None = None
    """L2 penalty, or AdamW's decay."""


class TrainSection(Section):
    """Settings of training."""

    rounds: Count = 100
    """Number of rounds."""
    stop: Stop | None = None
    """Rules by which training ends earlier: a section; null: after the last round."""
    on_round_end: str | Annotated[list[str], Field(min_length=1)] | None = None
    """Function of your own, or a list: package.module:look, where look(round, experiment) is called after every round,
    and ends training by returning true. From Python also the function itself."""
    batch_size: Count | Annotated[list[Count], Field(min_length=1)] | ClientCsv | BySpeed = 64
    """Number of samples per mini-batch: one for all clients, a list of one for each, a CSV file, or a section, by the
    speed of devices."""
    local_epochs: Count | Annotated[list[Count], Field(min_length=1)] | ClientCsv | BySpeed = 1
    """Number of passes of a client over its samples per round, as for batch_size."""
    loss: str | None = None
    """Loss: cross_entropy (one label, tokens, pixels), bce (a set of labels), mse, l1 or huber (numbers), or one of
    your own: package.module:loss, where loss(outputs, targets) gives the mean over a mini-batch; null means the first
    that fits the data. From Python also the function itself."""
    class_weights: Literal["balanced"] | Annotated[list[Positive], Field(min_length=1)] | None = None
    """Weights of the labels in cross_entropy, or of their presence in bce (torch's pos_weight): a list of one for each,
    or balanced: as rare labels need to count like all others; null: all count by their samples."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of a label's probability that cross_entropy spreads evenly over all labels."""
    ignore_index: Natural | None = None
    """Token, or label of pixels, that is neither trained on nor counted in metrics, such as padding; null: none. Pixels
    of 255 never are."""
    lr: Positive | PerClient | BySpeed = 0.05
    """Learning rate of the first round: one for all, a list of one for each client, a CSV file, or a section, by the
    speed of devices; where clients differ, train.server has the server's."""
    schedule: ScheduleSection | None = None
    """Learning rate by round: a kind of schedule, or a section with its options; null: as lr_decay says."""
    lr_decay: PositiveShare = 1.0
    """Factor on the learning rate after every round."""
    lr_min: Annotated[NonNegative, Unless("lr_decay", 1)] = 0.0
    """Lower bound of the decaying learning rate."""
    optimizer: Optimizer = "sgd"
    """Optimizer of clients and server: SGD, SGD with Nesterov's momentum, Adam, Adam with decoupled weight decay, or
    one of your own: package.module:make, where make(parameters, lr=...) gives a torch.optim.Optimizer, such as its
    class. From Python also the function itself."""
    momentum: Annotated[float, Field(ge=0, lt=1), HAS_MOMENTUM] = 0.0
    """Momentum of SGD; Adam has its default betas (0.9 and 0.999)."""
    weight_decay: NonNegative = 0.0
    """L2 penalty, or AdamW's decay."""
    clip_norm: Positive | None = None
    """Largest norm of a mini-batch's gradient, of the client's part and of the server's each by itself; a longer one is
    scaled down; null: none is."""
    server: ServerTrain | None = None
    """What is different at the main server: a section; null: it trains as the clients do."""
    batches: Literal["epochs", "full"] = "epochs"
    """Mini-batches: those of each epoch by itself, or full ones, which are cut out of all local epochs in a row."""
    drop_last: Annotated[bool, OnlyWith("batches", "epochs")] = False
    """Leave out the last mini-batch of a client's epoch if it is not full."""
    agg_weights: Literal["samples", "uniform"] = "samples"
    """Weights of the clients in the aggregation: their numbers of samples, or uniform."""
    precision: Literal["float32", "float64", "bf16", "tf32"] = "float32"
    """Floating-point type of parameters and activations. With bf16, parameters stay float32, activations and gradients
    are bfloat16 on the wire too; tf32 rounds the factors of float32 products, on a GPU."""
    max_graphs: Annotated[Count | None, Concern.COMPUTING] = None
    """Maximum of clients with activations in this machine's memory; others compute them again, with equal results."""
    on_nan: Literal["stop", "skip"] = "stop"
    """Treatment of a loss that is not finite: the run stops and names the operation, or updates with gradients that are
    not finite are left out and counted."""

    @model_validator(mode="after")
    def _has_one_rule_for_its_rate(self) -> TrainSection:
        if self.schedule and self.lr_decay != 1:
            problem = "cannot be given together with train.schedule, whose kind exponential is the same rule"
            raise ScenarioError(problem, key="lr_decay", found=self.lr_decay)
        return self

    @model_validator(mode="after")
    def _has_the_momentum_that_it_needs(self) -> TrainSection:
        server = self.server or ServerTrain()
        at_server = self.momentum if server.momentum is None else server.momentum
        pairs = {
            "momentum": (self.optimizer, self.momentum),
            "server.momentum": (server.optimizer or self.optimizer, at_server),
        }
        for key, (optimizer, momentum) in pairs.items():
            if optimizer == "nag" and not momentum:
                raise ScenarioError("is what Nesterov's method is about, and must be above 0", key=key, found=0.0)
        return self


class SnapshotsSection(Section):
    """Snapshots within rounds: the labels that the global model would know if the round ended now."""

    rounds: Annotated[list[Count], Field(min_length=1)]
    """Rounds with snapshots."""
    every: Count | None = None
    """Number of training jobs at the server between two snapshots; null means participants x burst / labels: in cyclic
    order one snapshot after every label's turn."""


class RelativeTarget(Section):
    """A target relative to another variant, which differs in its method or order alone."""

    share: PositiveShare
    """Share of the best accuracy that the reference reaches after any round (mean over seeds)."""
    of: Annotated[str, Field(min_length=1)] | MethodSection
    """The reference: its method's name, or a section with keys as under method where several have that name."""


class Report(Section):
    """Extra evaluations for the report."""

    target_accuracy: Annotated[PositiveShare | RelativeTarget | None, Concern.SHOWING] = None
    """Test accuracy whose time, rounds and bytes are reported: a number, or a section, for a share of another's."""
    exits_every: Count | None = None
    """Interval in rounds at which clients with early exits are evaluated as if training ended then; null evaluates
    after the last round only."""
    representations: Annotated[Count, Field(ge=10)] | None = None
    """Number of test samples whose inputs to the last layer, after training, the report shows in two dimensions
    (t-SNE); null for none."""
    metrics: dict[str, str] = Field(default={})
    """Metrics of your own, by the column of rounds.parquet that each fills: package.module:metric, where
    metric(outputs, targets) gives a number for all test samples. From Python also the functions themselves."""
    keep: Literal["last", "best"] | Count = "last"
    """Global models that are stored: the last; and with best that of the round with the best score on the validation
    samples (data.validation), or with a number k that of every k-th round."""
    snapshots: SnapshotsSection | None = None
    """Confusion matrices on the test set within rounds, without effect on training; null for none."""
    leakage: Leakage | None = None
    """Attacks on what crosses the cut, without effect on training: a section; null for none."""


LinksName = Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,30}$")]
"""Name of other links, and of the folder of what is timed on them."""


RateRange = Annotated[list[Positive], Field(min_length=2, max_length=2)]
"""The lowest and the highest of the learning rates that are tried."""


class Benchmark(Section):
    """How `sfl-sim benchmark` compares the variants; no part of a training."""

    rates: Annotated[dict[Literal["sgd", "momentum", "adam"], RateRange], Field(min_length=1)] = Field(
        default={"sgd": [0.003, 1.0], "momentum": [0.0003, 0.1], "adam": [0.0001, 0.03]}
    )
    """Optimisers that pilots try (momentum: SGD with 0.9 of it), each with its lowest and highest rate of clients."""
    pilot_seed: Seed = 900
    """Seed of the pilots, which the comparison must not use."""
    target_share: PositiveShare = 0.5
    """Place of the target of all, seed by seed, on the way from what clients at rest and weights at the start reach (0)
    to what a centrally trained network does (1)."""
    links: dict[LinksName, dict[str, JsonValue]] = Field(default={})
    """Other links, or devices, on which the trained runs are timed again, by a name: dotted keys as in a grid."""


class Scenario(Section):
    """A simulated experiment, or a grid of them."""

    @field_validator("servers")
    @classmethod
    def _have_names_of_their_own(cls, value: dict[str, TierSection]) -> dict[str, TierSection]:
        for name in value:
            if name in ("client", "server", "uplink", "peer"):
                raise ScenarioError("is a word that records have for something else", key=name, found=name)
        return value

    @model_validator(mode="before")
    @classmethod
    def _spell_out_objects(cls, values: object) -> object:
        return as_yaml(values)

    name: Annotated[str | None, Concern.SHOWING] = None
    """Name of the experiment; null means the file's name."""
    seed: Annotated[Seed, Concern.DEALING, Decided.BY_THE_WORLD] = 0
    """Seed of every source of randomness."""
    repeats: Annotated[Count, Concern.SHOWING] = 1
    """Number of runs of every variant, with the seeds seed, seed + 1, ..."""
    data: Annotated[Data, Concern.DEALING, Decided.BY_THE_WORLD] = Data()
    """The data set and how it is split over the clients."""
    model: ModelSection = ModelSection()
    """The network and where it is cut."""
    clients: Clients = Clients()
    """The clients."""
    server: Server = Server()
    """The server and its queue."""
    servers: dict[TierName, TierSection] = Field(default={})
    """Tiers of servers between clients and `server`, by name (up to six small letters), from the clients up; none by
    default."""
    method: Annotated[MethodSection, _OrName] = MethodSection()
    """The training method and its own options: a section, or the method's name."""
    train: TrainSection = TrainSection()
    """Settings of training."""
    wire: WireSection = WireSection()
    """Codecs of what clients and server send each other."""
    lora: LoraSection | None = None
    """Adapters of low rank (LoRA), with which all other weights are frozen: a section; null: all weights are
    trained."""
    privacy: Privacy = Privacy()
    """Defences of what crosses the cut."""
    grid: Annotated[dict[str, JsonValue] | list[dict[str, JsonValue]], Concern.SHOWING] = Field(default={})
    """Dotted keys and the values to try, in all combinations; or a list of such mappings."""
    report: Annotated[Report, Concern.RECORDING] = Report()
    """Extra evaluations for the report."""
    serving: Annotated[Serving | None, Concern.SHOWING] = None
    """Requests to the trained model, for `sfl-sim serve`; no part of the training."""
    benchmark: Annotated[Benchmark | None, Concern.SHOWING] = None
    """Comparison of the variants with equal tuning, for `sfl-sim benchmark`; no part of the training."""
