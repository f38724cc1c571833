"""Program of Flower's workers. It is a module of its own, since they cannot import the main program."""

from copy import deepcopy
from functools import lru_cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.peers.training import BATCH, LR, MOMENTUM, Workload

app = ClientApp()
workload = lru_cache(Workload)


@app.train()
def train(message: Message, context: Context) -> Message:
    config = message.content["config"]
    given = workload(config["workload"])
    x, y = given.samples(config["server-round"] - 1, config["visit"])
    model = deepcopy(given.model)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), LR, MOMENTUM)
    for images, labels in zip(x.split(BATCH), y.split(BATCH), strict=True):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimiser.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(RecordDict(content), reply_to=message)
