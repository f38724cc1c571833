"""What a scenario may say about its data: the set, and how the samples are dealt to the clients."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sfl_sim.config.section import Count, Natural, Positive, Probability, Section


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


class Dirichlet(Section):
    """Every label is dealt to the clients in proportions drawn from a symmetric Dirichlet distribution."""

    kind: Literal["dirichlet"] = "dirichlet"
    """How the samples are dealt to the clients."""
    alpha: Positive = 0.3
    """Concentration: the smaller, the more unequal the clients."""
    min_size: Natural = 10
    """Fewest samples that a client may hold."""


class Data(Section):
    """The data set and how it is split over the clients."""

    name: str = "digits"
    """Data set."""
    path: str | None = None
    """Root directory of an image_folder data set."""
    image_size: Count | None = None
    """Height and width in pixels that images are resized to; null keeps them as they are."""
    root: str | None = None
    """Where torchvision data lie; null means $SFL_SIM_DATA, or else ~/.cache/sfl-sim."""
    download: bool = True
    """Download the data set if it is not there."""
    train_samples: Count | None = None
    """Use only so many training samples; null means all."""
    test_samples: Count | None = None
    """Use only so many test samples; null means all."""
    augment: bool = False
    """Random crop and horizontal flip of the training images."""
    partition: Annotated[Iid | DominantLabel | Dirichlet, Field(discriminator="kind")] = Iid()
    """How the training samples are dealt to the clients."""
