"""Training steps of whole networks on one thread of torch, over what costs/torch says of them.

    python -m research.profiles.steps

Forward and backward pass of 8 images of 96 x 96, channels last, and forward passes alone; networks alternate, in
processor time. The rate is that of MobileNet-V2's image in the same run.
"""

from pathlib import Path

import torch

from benchmarks.pairs import publish
from research.profiles.measure_runtimes import build
from research.profiles.optimisers import inference, seconds
from sfl_sim.models.part import sample_work, spared_work, work_of
from sfl_sim.models.price import price_of
from sfl_sim.system.cost import read_cost

RESULTS = Path(__file__).parent / "results"
NETWORKS = [
    "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "mnasnet1_0", "efficientnet_b0", "convnext_tiny",
    "shufflenet_v2_x1_0", "resnet18", "vgg11",
]  # fmt: skip
SAMPLES, SIDE = 8, 96


def main():
    """Write results/steps.json."""
    torch.set_num_threads(1)
    reference, image = build("mobilenet_v2"), torch.rand(1, 3, 224, 224)
    runs = {"reference": lambda: inference(reference, image)}
    networks = {name: build(name).to(memory_format=torch.channels_last) for name in NETWORKS}
    x = torch.rand(SAMPLES, 3, SIDE, SIDE).to(memory_format=torch.channels_last)
    for name, network in networks.items():
        runs[name, "forward"] = lambda network=network: inference(network.eval(), x)
        runs[name, "step"] = lambda network=network: _step(network.train(), x)
    s = seconds(runs)
    processor = read_cost("torch").processor(price_of(reference, image)[0].macs / s["reference"])
    rows = []
    for name, network in networks.items():
        layer, _ = price_of(network, x[:1])
        sample, spared = sample_work([layer]), spared_work([layer], gradient=False)
        forward_s, step_s = (processor.seconds(work_of(sample, SAMPLES, passes, spared)) for passes in (1, 3))
        rows.append(
            {
                "network": name,
                "step, ms": round(1000 * s[name, "step"], 1),
                "step over forward": round(s[name, "step"] / s[name, "forward"], 2),
                "priced": round(step_s / forward_s, 2),
                "priced over measured, forward": round(forward_s / s[name, "forward"], 2),
                "priced over measured, step": round(step_s / s[name, "step"], 2),
            }
        )
    publish("steps", rows, RESULTS)


def _step(network, x):
    network.zero_grad(set_to_none=False)
    network(x).sum().backward()


if __name__ == "__main__":
    main()
