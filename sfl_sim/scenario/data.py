"""Section of a scenario about its data: the data set, and the partition of its samples among the clients."""

from typing import Annotated, Literal

from pydantic import Field

from sfl_sim.scenario.fields import Concern, Count, Decided, Natural, NonNegative, Positive, Probability, Section


class Iid(Section):
    """Partition in which every client draws from the same label distribution."""

    kind: Literal["iid"] = "iid"
    """Kind of partition."""


class DominantLabel(Section):
    """Partition in which every client holds mostly one label."""

    kind: Literal["dominant_label"] = "dominant_label"
    """Kind of partition."""
    p: Probability = 0.8
    """Share of a client's samples that carry its dominant label."""
    phi: Count = 1
    """Number of clients per dominant label."""


class Sharding(Section):
    """Partition in which every client holds mostly a few labels, shared with the clients of neighbouring groups."""

    kind: Literal["sharding"] = "sharding"
    """Kind of partition."""
    p: Probability = 0.8
    """Share of a client's samples that carry its dominant labels."""
    dominants: Count = 2
    """Number of dominant labels of a client."""
    phi: Count = 1
    """Number of clients per group; there are as many groups as labels."""


class LabelShards(Section):
    """Partition in which every client draws some shards of the samples sorted by label."""

    kind: Literal["label_shards"] = "label_shards"
    """Kind of partition."""
    shards: Count = 2
    """Number of shards per client."""
    n_shards: Count = 100
    """Number of shards into which the samples are cut; those that no client draws are not trained on."""


class Dirichlet(Section):
    """Labels and clients are matched in proportions drawn from a symmetric Dirichlet distribution."""

    kind: Literal["dirichlet"] = "dirichlet"
    """Kind of partition."""
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
    """Kind of partition."""
    beta: Positive = 0.5
    """Concentration of the Dirichlet distribution of sizes: the smaller, the more unequal the clients."""
    min_size: Natural = 10
    """Fewest samples that a client may hold; all is drawn again until every client does."""


class ByOwner(Section):
    """Partition by the persons who contributed samples, in data sets that name them."""

    kind: Literal["natural"] = "natural"
    """Kind of partition."""


class Indices(Section):
    """Partition of your own."""

    kind: Literal["indices"] = "indices"
    """Kind of partition."""
    file: Annotated[str, Field(min_length=1)]
    """File with the indices into the training samples that each client holds: JSON (a list of lists), or npz (an array
    for each client). JSON may also hold the client of each training sample (a list of names or numbers). Or
    package.module:function, which gets the labels of all training samples and returns either. From Python also such a
    list, an array or a function, in place of the whole section."""


PartitionSection = Annotated[
    Iid | DominantLabel | Sharding | LabelShards | Dirichlet | QuantitySkew | ByOwner | Indices,
    Field(discriminator="kind"),
]


class GlobalTest(Section):
    """The global test set for all clients."""

    kind: Literal["global"] = "global"
    """Kind of test sets."""


class RhoOod(Section):
    """Test sets with each client's own labels, and fewer samples of labels that it has not seen."""

    kind: Literal["rho_ood"] = "rho_ood"
    """Kind of test sets."""
    rho: Annotated[float, Field(ge=0, le=1_000_000)]
    """Number of test samples of labels that a client has not seen, per sample of those that it has seen."""


class OutOfClient(Section):
    """Test sets with labels as skewed as those that other clients, or the client itself, trained on."""

    kind: Literal["out_of_client"] = "out_of_client"
    """Kind of test sets."""
    drift: bool = True
    """Test a client on the label distribution of the others; false: on its own."""


TestSets = Annotated[GlobalTest | RhoOod | OutOfClient, Field(discriminator="kind")]


class Validation(Section):
    """Training samples that are set aside: they, and not the test set, end training early and choose a round."""

    one_of = (("share",), ("samples",))

    share: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of each client's samples."""
    samples: Count | None = None
    """Number of samples, drawn from those of all clients."""


class Data(Section):
    """The data set and how it is split over the clients."""

    one_of = (("name",), ("factory",))

    name: str | None = "digits"
    """Data set."""
    factory: str | None = None
    """Data of your own: package.module:make, where make() gives (x_train, y_train, x_test, y_test) as arrays or
    tensors, or two torch data sets. From Python also the data themselves."""
    path: str | None = None
    """image_folder: root directory of the images. shakespeare: a text with speaker headings instead of LEAF's files.
    hf: folder of a Hugging Face data set with parts train and test."""
    tokenizer: str | None = None
    """hf: folder of a tokenizer of transformers, which reads the column `text`; null: its column `input_ids`."""
    image_size: Annotated[Count, Field(le=4096)] | None = None
    """image_folder: height and width in pixels that images are resized to; null keeps them as they are."""
    root: Annotated[str | None, Concern.RECORDING] = None
    """Folder of data sets and their cache; null means $SFL_SIM_DATA, or else ~/.cache/sfl-sim."""
    download: Annotated[bool, Concern.SHOWING] = True
    """Download the data set if it is missing and published."""
    superclasses: bool | None = None
    """cifar100: the 20 superclasses as labels instead of the 100 classes."""
    owners: Count | None = None
    """Sets with owners: number of writers, celebrities, roles or users to keep; null keeps all. synthetic, tokens:
    number of owners."""
    samples_per_owner: Count | None = None
    """shakespeare: training samples in a row to keep of each role; roles without more are left out; null keeps all."""
    shape: Annotated[tuple[Count, ...], Field(strict=False)] | None = None
    """synthetic: [channels, height, width] of an image, or [tokens] of a sequence. tokens: [tokens]. hf: [tokens] that
    are read of a sequence at most."""
    n_labels: Count | None = None
    """synthetic: number of labels. tokens: number of different tokens."""
    samples: Count | None = None
    """synthetic, tokens: number of training samples; there are a quarter as many test samples besides."""
    separation: NonNegative | None = None
    """synthetic: distance of two labels in standard deviations of the noise; 0 cannot be learned, 10 easily."""
    train_samples: Count | None = None
    """Number of training samples to use; null means all."""
    test_samples: Annotated[Count | None, Concern.LEARNING] = None
    """Number of test samples to use; null means all."""
    targets: Literal["last", "all"] | None = None
    """What is predicted of a sequence of tokens: the label, which is the token after its last one, or the next token at
    every position. A sample's label is then its owner. null means all for language models, last for others."""
    augment: Annotated[bool, Concern.LEARNING, Decided.BY_THE_USER] = False
    """Random crop and horizontal flip of the training images."""
    std: Annotated[tuple[Positive, ...] | None, Field(strict=False), Concern.LEARNING] = None
    """Standard deviation of each channel, of pixels from 0 to 1, by which images are divided; null: the data set's."""
    partition: PartitionSection = Iid()
    """Partition of the training samples among the clients."""
    validation: Validation | None = None
    """Samples of the clients that are set aside for choices: a section; null: none, and choices ask the test set."""
    test: Annotated[TestSets, Concern.LEARNING] = GlobalTest()
    """Test sets of the clients' own, besides the global one."""
