"""GPU tests: the numbers of the CPU, and a host that never waits for the GPU within a round."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from audit import BF16, Audit, single
from small_world import batch_norm_net, simulate, task, tensors

from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.models.forward_settings import ForwardSettings, Graphs
from sfl_sim.models.zoo import MODELS, network
from sfl_sim.training.hardware import PRECISIONS, check_precision

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def work_on(device, max_graphs=None):
    """Augmented images, batch norm, momentum, and clients of unequal size with incomplete batches, in float64."""
    work = task([10, 7, 9], build=batch_norm_net, momentum=0.9, device=device)
    work.data.images.augment = True
    return replace(work, network=work.network.with_settings(ForwardSettings(graphs=Graphs(max_graphs))))


@contextmanager
def never_waiting():
    """Turn every wait of the host for the GPU into an error."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_gpu_computes_what_the_cpu_computes(name):
    expected, found = (simulate(name, work_on(device))[0] for device in (CPU, GPU))
    found = tensors(found)
    assert all((found[key].cpu() - tensor).abs().max() < 1e-9 for key, tensor in tensors(expected).items())


@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_nothing_waits_for_the_gpu_inside_a_round(name):
    """Uploads of indices, augmentation, recomputed forward passes, optimiser and averages go on without the host."""
    work = work_on(GPU, max_graphs=1)
    simulate(name, work, rounds=1)  # libraries wait when they are loaded
    with never_waiting():
        simulate(name, work, rounds=1)


def test_declared_bytes_are_the_real_bytes_under_bf16():
    audit = Audit()
    simulate("splitfed_v2", single(BF16, device=GPU), executor=audit)
    assert all(declared == real for _, declared, real in audit.weighed)


def test_tf32_and_bf16_need_tensor_cores_and_round_as_they_say():
    lenet5 = network(MODELS["lenet5"], (1, 28, 28), 10)
    if torch.cuda.get_device_capability() < (8, 0):
        for name in ("tf32", "bf16"):
            with pytest.raises(ScenarioError, match="Ampere"):
                check_precision(name, GPU, lenet5, 64)
        return
    x = torch.rand(512, 512, device=GPU, generator=torch.Generator(GPU).manual_seed(0))
    images, kernels = x.view(4, 8, 64, 128), x[:8].reshape(8, 8, 8, 8)
    exact = x.double() @ x.double(), torch.conv2d(images.double(), kernels.double())
    off = {}
    for name in ("float32", "tf32"):
        check_precision(name, GPU, lenet5, 64)
        PRECISIONS[name].activate()
        found = x @ x, torch.conv2d(images, kernels)
        off[name] = [float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, exact, strict=True)]
    PRECISIONS["float32"].activate()
    assert all(error < 1e-5 for error in off["float32"])
    assert all(1e-6 < error < 1e-2 for error in off["tf32"])
    check_precision("bf16", GPU, lenet5, 64)
