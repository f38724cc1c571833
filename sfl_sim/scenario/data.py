"""What a scenario may say about its data: the set, and how the samples are dealt to the clients."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sfl_sim.scenario.fields import Concern, Count, Natural, NonNegative, Positive, Probability, Section


class Iid(Section):
    """Every client draws from the same label distribution."""

    kind: Literal["iid"] = "iid"
    """How the samples are dealt to the clients."""


class DominantLabel(Section):
    """Every client holds mostly one label."""

    kind: Literal["dominant_label"] = "dominant_label"
    """How the samples are dealt to the clients."""
    p: Probability = 0.8
    """Share of a client's samples that carry its dominant label."""
    phi: Count = 1
    """Clients per dominant label."""
    balance: Literal["subsample"] | None = None
    """Cut all labels to the size of the rarest, so that clients are of equal size; null uses every sample."""


class Sharding(Section):
    """Every client holds mostly a few labels, which the clients of neighbouring groups share."""

    kind: Literal["sharding"] = "sharding"
    """How the samples are dealt to the clients."""
    p: Probability = 0.8
    """Share of a client's samples that carry its dominant labels."""
    dominants: Count = 2
    """Dominant labels of a client."""
    phi: Count = 1
    """Clients per group; there are as many groups as labels."""


class LabelShards(Section):
    """Every client draws some of 100 shards of the samples sorted by label."""

    kind: Literal["label_shards"] = "label_shards"
    """How the samples are dealt to the clients."""
    shards: Count = 2
    """Shards per client."""


class Dirichlet(Section):
    """Labels and clients are matched in proportions drawn from a symmetric Dirichlet distribution."""

    kind: Literal["dirichlet"] = "dirichlet"
    """How the samples are dealt to the clients."""
    alpha: Positive = 0.3
    """Concentration: the smaller, the more unequal the clients."""
    by: Literal["class", "class_plain", "client", "client_equal"] = "class"
    """Draw for each label how the clients share it, or for each client which labels it holds. `class` spares clients
    that have their equal share of all samples, `class_plain` does not; `client_equal` makes clients of equal size."""
    min_size: Natural = 10
    """Fewest samples that a client may hold; all is drawn again until every client does."""


class QuantitySkew(Section):
    """Clients hold the same labels, but unequally many samples."""

    kind: Literal["quantity_skew"] = "quantity_skew"
    """How the samples are dealt to the clients."""
    beta: Positive = 0.5
    """Concentration of the Dirichlet distribution of sizes: the smaller, the more unequal the clients."""
    min_size: Natural = 10
    """Fewest samples that a client may hold; all is drawn again until every client does."""


class ByOwner(Section):
    """Every client is a person who brought samples, in data sets that tell."""

    kind: Literal["natural"] = "natural"
    """How the samples are dealt to the clients."""


Partition = Annotated[
    Iid | DominantLabel | Sharding | LabelShards | Dirichlet | QuantitySkew | ByOwner, Field(discriminator="kind")
]


class GlobalTest(Section):
    """One test set for all."""

    kind: Literal["global"] = "global"
    """Test sets of the clients' own."""


class RhoOod(Section):
    """Each client is tested on its own labels, and on fewer samples of those that it has not seen."""

    kind: Literal["rho_ood"] = "rho_ood"
    """Test sets of the clients' own."""
    rho: NonNegative
    """Test samples of labels that a client has not seen, for each one of those that it has."""


class OutOfClient(Section):
    """Each client is tested on labels as skewed as those that others, or it itself, trained on."""

    kind: Literal["out_of_client"] = "out_of_client"
    """Test sets of the clients' own."""
    drift: bool = True
    """Test a client on what the others are like; false tests it on what it is like itself."""


TestSets = Annotated[GlobalTest | RhoOod | OutOfClient, Field(discriminator="kind")]


class Data(Section):
    """The data set and how it is split over the clients."""

    name: str = "digits"
    """Data set."""
    path: str | None = None
    """image_folder: root directory of the images. shakespeare: a text with speaker headings instead of LEAF's files."""
    image_size: Count | None = None
    """image_folder: height and width in pixels that images are resized to; null keeps them as they are."""
    root: Annotated[str | None, Concern.RECORDING] = None
    """Where data sets and their cache lie; null means $SFL_SIM_DATA, or else ~/.cache/sfl-sim."""
    download: Annotated[bool, Concern.SHOWING] = True
    """Download the data set if it is not there and is published."""
    superclasses: bool | None = None
    """cifar100: the 20 superclasses as labels instead of the 100 classes."""
    owners: Count | None = None
    """femnist, shakespeare: keep so many writers or roles; null keeps all. synthetic: deal the samples to so many."""
    samples_per_owner: Count | None = None
    """shakespeare: keep so many training samples in a row of each role, and no role without more; null keeps all."""
    shape: Annotated[tuple[Count, ...], Field(strict=False)] | None = None
    """synthetic: [channels, height, width] of an image, or [tokens] of a sequence."""
    n_labels: Count | None = None
    """synthetic: number of labels."""
    samples: Count | None = None
    """synthetic: training samples; a quarter as many test samples come on top."""
    separation: NonNegative | None = None
    """synthetic: distance of two labels in standard deviations of the noise; 0 cannot be learned, 10 easily."""
    train_samples: Count | None = None
    """Use only so many training samples; null means all."""
    test_samples: Annotated[Count | None, Concern.LEARNING] = None
    """Use only so many test samples; null means all."""
    augment: Annotated[bool, Concern.LEARNING] = False
    """Random crop and horizontal flip of the training images."""
    partition: Partition = Iid()
    """How the training samples are dealt to the clients."""
    test: Annotated[TestSets, Concern.LEARNING] = GlobalTest()
    """Test sets of the clients' own, besides the global one."""
