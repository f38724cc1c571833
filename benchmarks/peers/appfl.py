"""APPFL's side (Li et al. 2024): its simulation on virtual time, with its trainer and its loaders of single samples."""

import logging
import sys
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from appfl.agent import ClientAgent, ServerAgent
from appfl.config import ClientAgentConfig, ServerAgentConfig
from appfl.vsim import ClientProfile, SyncSimDriver
from omegaconf import OmegaConf

from benchmarks.child import rounds
from benchmarks.peers.training import BATCH, LR, MOMENTUM, Workload, weights


class Samples(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """A client's samples; the next round's order begins where the first one is read."""

    def __init__(self, workload: Workload, client: int) -> None:
        self.workload, self.client, self.round = workload, client, 0

    def __len__(self) -> int:
        return len(self.workload.visits[0][self.client])

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        if place == 0:
            self.x, self.y = self.workload.samples(self.round, self.client)
            self.round += 1
        return self.x[place], self.y[place]


class Client(ClientAgent):
    """A client with a copy of the workload's model, and with its samples."""

    def __init__(self, workload: Workload, number: int, config: ClientAgentConfig) -> None:
        self.model = deepcopy(workload.model)
        self.metric = lambda labels, outputs: np.mean(labels == outputs.argmax(1))
        self.train_dataset, self.val_dataset, self.client_id = Samples(workload, number), None, str(number)
        super().__init__(config)

    def _load_data(self) -> None:
        """Keep the samples that it was made with."""


class Driver(SyncSimDriver):
    """A round for every one that is asked for."""

    def __init__(self, turns: Any, *given: Any, **settings: Any) -> None:
        self.turns = turns
        super().__init__(*given, **settings)

    def _run_round(self) -> bool:
        next(self.turns)
        return bool(super()._run_round())


def main() -> None:
    file, logs, settings = sys.argv[1:]
    workload = Workload(file)
    number = len(workload.visits[0])
    lean = {"optimize_memory": settings == "as-it-comes"}
    config = OmegaConf.create({
        "trainer": "VanillaTrainer", "mode": "epoch", "num_local_epochs": 1, "optim": "SGD", "device": "cpu",
        "optim_args": {"lr": LR, "momentum": MOMENTUM}, "loss_fn": "CrossEntropyLoss", "train_batch_size": BATCH,
        "train_data_shuffle": False, "logging_output_dirname": logs, **lean,
    })  # fmt: skip
    server_config = OmegaConf.create({
        "num_clients": number, "num_global_epochs": len(workload.visits), "logging_output_dirname": logs,
        "scheduler": "SyncScheduler", "scheduler_kwargs": lean,
        "aggregator": "FedAvgAggregator", "aggregator_kwargs": {"client_weights_mode": "sample_size", **lean}, **lean,
    })  # fmt: skip
    ServerAgent._load_model = lambda agent: setattr(agent, "model", workload.model)  # type: ignore[method-assign]
    server = ServerAgent(ServerAgentConfig(OmegaConf.create({"train_configs": config}), server_config))
    clients = []
    for client in range(number):
        own = ClientAgentConfig(train_configs=config)
        own.optimize_memory = lean["optimize_memory"]
        clients.append(Client(workload, client, own))
        server.set_sample_size(clients[-1].get_id(), clients[-1].get_sample_size())

    def found() -> dict[str, Any]:
        workload.model.load_state_dict(server.get_parameters(serial_run=True))
        return weights(workload.model)

    profiles = {client.get_id(): ClientProfile() for client in clients}
    Driver(
        rounds(found), server, clients, profiles, number, logging.getLogger(), target_rounds=len(workload.visits)
    ).run()


if __name__ == "__main__":
    main()
