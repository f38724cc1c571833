"""fluke's side (Polato 2024), written as its own `FedAVG` is run, with its loader of tensors in memory."""

import sys
from typing import Any

from fluke.algorithms.fedavg import FedAVG
from fluke.data import FastDataLoader
from fluke.utils import FederationObserver

from benchmarks.child import rounds
from benchmarks.peers.training import BATCH, LR, MOMENTUM, Workload, weights


class Turns(FederationObserver):
    """A round for every one that is asked for, with each client's samples of this round in its order."""

    def __init__(self, workload: Workload, algorithm: FedAVG) -> None:
        self.workload, self.clients = workload, algorithm.clients
        self.turns = rounds(lambda: weights(algorithm.server.model))

    def start_round(self, round: int, global_model: Any) -> None:
        next(self.turns)
        for client in self.clients:
            client.train_set.tensors = self.workload.samples(round - 1, client.index)


class Dealt:
    """The workload's clients, in the place of fluke's own splitter."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload

    def assign(self, n_clients: int, batch_size: int) -> Any:
        def loader(client: int) -> FastDataLoader:
            return FastDataLoader(*self.workload.samples(0, client), num_labels=10, batch_size=batch_size)

        return ([loader(client) for client in range(n_clients)], [None] * n_clients), None


def main() -> None:
    file, _folder = sys.argv[1:]
    workload = Workload(file)
    client = {"batch_size": BATCH, "local_epochs": 1, "loss": "CrossEntropyLoss", "persistency": False}
    client |= {"optimizer": {"name": "SGD", "lr": LR, "momentum": MOMENTUM}, "scheduler": {"step_size": 1, "gamma": 1}}
    settings = {"client": client, "server": {"weighted": True}, "model": workload.model}
    algorithm = FedAVG(len(workload.visits[0]), Dealt(workload), settings)
    algorithm.set_callbacks(Turns(workload, algorithm))
    algorithm.run(len(workload.visits), 1.0)


if __name__ == "__main__":
    main()
