"""Flower's side (Beutel et al. 2020): its simulation on Ray, one thread for each of two clients at a time."""

import logging
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import psutil
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.child import rounds
from benchmarks.peers.flower_client import app
from benchmarks.peers.training import Workload, weights


class Turns(FedAvg):
    """FedAvg that starts a round when asked to, and tells every participant which visit of the round it plays."""

    def __init__(self, file: str, turns: Iterator[None], **settings: Any) -> None:
        super().__init__(**settings)
        self.file = file
        self.turns = turns
        self.arrays = ArrayRecord()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.arrays = arrays
        next(self.turns)
        messages = super().configure_train(server_round, arrays, config, grid)
        for visit, message in enumerate(messages):
            own = ConfigRecord({"server-round": server_round, "visit": visit, "workload": self.file})
            yield Message(
                RecordDict({"arrays": arrays, "config": own}),
                dst_node_id=message.metadata.dst_node_id,
                message_type=message.metadata.message_type,
            )


def cpu_s() -> float:
    """Give the CPU seconds of this process and of Ray's, which are its descendants."""
    here = psutil.Process(os.getpid())
    return sum(sum(process.cpu_times()[:2]) for process in (here, *here.children(recursive=True)))


def main() -> None:
    file, _folder = sys.argv[1:]
    logging.getLogger("flwr").setLevel(logging.ERROR)
    workload = Workload(file)
    participants = len(workload.visits[0])
    server = ServerApp()

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        def found() -> dict[str, Any]:
            workload.model.load_state_dict(strategy.arrays.to_torch_state_dict())
            return weights(workload.model)

        strategy = Turns(
            file,
            rounds(found, cpu_s),
            min_train_nodes=participants,
            min_available_nodes=participants,
            fraction_evaluate=0.0,
        )
        strategy.start(grid, ArrayRecord(workload.model.state_dict()), num_rounds=len(workload.visits))

    run_simulation(server, app, participants, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})


if __name__ == "__main__":
    main()
