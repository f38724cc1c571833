"""Lets APPFL's virtual time tell a round of FedAvg: reads a case from standard input, and writes what is told.

    PYTHON_WITH_APPFL research/live/showdown_appfl.py < case.json

The driver (appfl.vsim.SyncSimDriver, 1.12.0) and profiles are its own; agents train nothing, and say how many steps
they have done.
"""

import json
import logging
import sys
import types

import torch
from appfl.vsim import ClientProfile, SyncSimDriver

case = json.load(sys.stdin)
model = {"weights": torch.zeros(case["model_bytes"] // 4)}


class Client:
    """An agent of APPFL that trains nothing."""

    def __init__(self, number):
        self.number = number

    def get_id(self):
        return str(self.number)

    def load_parameters(self, _):
        pass

    def train(self):
        pass

    def get_parameters(self):
        return model, {"current_local_steps": case["steps"][self.number]}


scheduler = types.SimpleNamespace(num_clients=len(case["steps"]))
scheduler.set_num_clients = lambda n: setattr(scheduler, "num_clients", n)
server = types.SimpleNamespace(
    scheduler=scheduler,
    get_parameters=lambda **_: model,
    global_update=lambda **_: None,
    training_finished=lambda: False,
)
clients = range(len(case["steps"]))
profiles = {str(c): ClientProfile(case["compute_factor"][c], case["bandwidth_mbps"][c]) for c in clients}
logging.disable(logging.CRITICAL)
driver = SyncSimDriver(
    server,
    [Client(c) for c in clients],
    profiles,
    len(clients),
    logging.getLogger("appfl"),
    base_step_time=case["step_s"],
    min_responses=len(clients),
    target_rounds=1,
)
completions = driver._compute_completions([str(c) for c in clients], 0.0)
driver.run()
ends_s = {found["cid"]: found["completion_time"] for found in completions}
said = {"round_s": driver.history[0]["duration"], "bytes": driver.history[0]["comm_bytes"]}
print(json.dumps(said | {"ends_s": [ends_s[str(c)] for c in clients]}))
