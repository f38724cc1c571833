"""pfl-research's side (Granqvist et al. 2024), written as its PyTorch benchmarks are."""

import sys
from itertools import count
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from benchmarks.child import rounds
from benchmarks.peers.training import BATCH, LR, MOMENTUM, Workload, weights
from sfl_sim.training.hardware import keep_freed_memory


class Classifier(nn.Module):
    def __init__(self, layers: nn.Module, layout: torch.memory_format) -> None:
        super().__init__()
        self.layers = layers.to(memory_format=layout)
        self.layout = layout

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.layers(x.contiguous(memory_format=self.layout)), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {}


class Turns(TrainingProcessCallback[PyTorchModel]):
    """A central iteration for every round that is asked for."""

    def __init__(self, module: Classifier) -> None:
        self.turns = rounds(lambda: weights(module.layers))
        next(self.turns)

    def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, Metrics]:
        next(self.turns)
        return False, Metrics()


def main() -> None:
    file, _folder, settings = sys.argv[1:]
    tuned = settings == "our-settings"
    if tuned:
        keep_freed_memory()
    workload = Workload(file)
    cohort = len(workload.visits[0])
    visit = count()

    def participant(number: int) -> Dataset:
        return Dataset(workload.samples(*divmod(number, cohort)))

    module = Classifier(workload.model, torch.channels_last if tuned else torch.contiguous_format)
    model = PyTorchModel(
        module,
        local_optimizer_create=lambda parameters, lr: torch.optim.SGD(parameters, lr, MOMENTUM, fused=tuned),
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    backend = SimulatedBackend(FederatedDataset(participant, lambda: next(visit)), val_data=None)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=len(workload.visits),
            evaluation_frequency=len(workload.visits),
            train_cohort_size=cohort,
            val_cohort_size=0,
        ),
        backend,
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH),
        callbacks=[Turns(module)],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()
