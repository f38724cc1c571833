"""What a scenario may say: every key, its default, its bounds and what it means.

The docstring under a field is its description in the JSON Schema that editors show. Which methods, models,
data sets and orders exist is not known here; the composition root checks those names.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, JsonValue

from sfl_sim.config.data import Data
from sfl_sim.config.section import Count, Natural, NonNegative, PerClient, Positive, PositiveShare, Rated, Section


class Model(Section):
    """The network and where it is cut."""

    name: str = "cnn_small"
    """Network."""
    cut: Count = 1
    """Blocks of part-1, which the clients train; the server trains the rest."""


class Compute(Rated):
    """How fast the client devices compute."""

    rates = ("macs_per_s",)
    bare: ClassVar = {"string": "profile", "number": "macs_per_s"}

    profile: str | None = "ai_benchmark"
    """Measured devices that the clients are drawn from: a profile's name or file."""
    macs_per_s: Positive | PerClient | None = None
    """Multiply-accumulates per second: one rate for all clients, or a list of one for each."""
    scale: Positive = 1.0
    """Factor on every device's rate."""


class Network(Rated):
    """How fast the links of the clients are."""

    rates = ("uplink_bps", "downlink_bps")
    instead = ("profile", "trace")
    bare: ClassVar = {"string": "profile"}

    profile: str | None = "mobiperf"
    """Measured links that the clients are drawn from: a profile's name or file."""
    uplink_bps: Positive | PerClient | None = None
    """Bits per second from client to server: one rate for all clients, or a list of one for each."""
    downlink_bps: Positive | PerClient | None = None
    """Bits per second from server to client: one rate for all clients, or a list of one for each."""
    trace: str | None = None
    """How the rates vary over time: a trace's name or file; null keeps them constant."""
    latency_s: NonNegative = 0.0
    """Seconds that every message takes on top of its bytes."""
    scale: Positive = 1.0
    """Factor on every link's rate."""


class Clients(Section):
    """The fleet."""

    count: Count | None = None
    """Number of clients; null means phi x labels with the partition dominant_label, else 10."""
    participation: PositiveShare = 1.0
    """Share of the clients that take part in a round."""
    compute: Compute = Compute()
    """How fast the devices compute: a section, a profile's name, or multiply-accumulates per second."""
    network: Network = Network()
    """How fast the links are: a section, or a profile's name."""


class Server(Section):
    """The server and its queue."""

    speedup: Positive = 100.0
    """How many times less time than its clients on average the server needs for a multiply-accumulate (gamma)."""
    workers: Count | Literal["unlimited"] = 1
    """Jobs that the server can process at the same time."""
    order: str = "fcfs"
    """Who is served next where clients share a part-2 (splitfed_v2); other methods have no order to choose."""
    burst: Count | Literal["all"] | None = None
    """Consecutive jobs of a client that are served in one turn; null leaves it to the order."""
    include_model_exchange: bool = True
    """Whether the transfers of part-1 at the start and the end of a round take time."""


class Method(Section):
    """The training method; all keys but `name` are the method's own options."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)

    name: str = "splitfed_v2"
    """Training method."""

    @property
    def options(self) -> dict[str, Any]:
        """The method's own options, as the scenario gives them."""
        return dict(self.__pydantic_extra__)


class Train(Section):
    """How the model is trained."""

    rounds: Count = 100
    """Rounds."""
    batch_size: Count = 64
    """Samples per mini-batch."""
    local_epochs: Count = 1
    """Passes of a client over its samples per round."""
    lr: Positive = 0.05
    """Learning rate of the first round."""
    lr_decay: PositiveShare = 1.0
    """Factor on the learning rate after every round."""
    lr_min: NonNegative = 0.0
    """Learning rate below which the decay does not go."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Momentum of SGD."""
    weight_decay: NonNegative = 0.0
    """L2 penalty of SGD."""
    drop_last: bool = False
    """Leave out a client's last mini-batch if it is not full."""
    agg_weights: Literal["samples", "uniform"] = "samples"
    """Weights of the clients in the aggregation: their numbers of samples, or all equal."""
    precision: Literal["float32", "float64"] = "float32"
    """Floating-point type of parameters and activations."""


class Report(Section):
    """What the report asks of the run."""

    target_accuracy: PositiveShare | None = None
    """Test accuracy whose time and rounds are reported."""


class Scenario(Section):
    """A simulated experiment, or a grid of them."""

    name: str | None = None
    """Name of the experiment; null means the file's name."""
    seed: Natural = 0
    """Seed of every source of randomness."""
    repeats: Count = 1
    """Number of runs of every variant, with the seeds seed, seed + 1, ..."""
    data: Data = Data()
    """The data set and how it is split over the clients."""
    model: Model = Model()
    """The network and where it is cut."""
    clients: Clients = Clients()
    """The fleet."""
    server: Server = Server()
    """The server and its queue."""
    method: Method = Method()
    """The training method and its own options."""
    train: Train = Train()
    """How the model is trained."""
    grid: dict[str, JsonValue] | list[dict[str, JsonValue]] = Field(default={})
    """Dotted keys and the values to try, in all combinations; or a list of such mappings."""
    report: Report = Report()
    """What the report asks of the run."""


EXCLUDES = {
    "clients.compute.profile": Compute.rates,
    "clients.compute.macs_per_s": ("profile",),
    "clients.network.profile": Network.rates,
    "clients.network.uplink_bps": ("profile",),
    "clients.network.downlink_bps": ("profile",),
}
"""The neighbours that a key displaces when a grid or an option on the command line sets it."""
