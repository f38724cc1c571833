"""Floating-point precisions of training steps, and checks of the hardware for them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sfl_sim.errors import ScenarioError
from sfl_sim.models.network import Network

DEPTHWISE_SHARE = 0.01
"""Share of depthwise MACs from which bfloat16 is slower on a CPU: training steps of mobilenet_v1 (3 %) take 1.7 times
as long as in float32 and those of mobilenet_v2 (7 %) 1.1 times; without depthwise layers, cnn8, resnet18 and vgg11_bn
are 1.5 to 1.7 times as fast."""

SMALL_BATCH_MACS = 100e6
"""Forward MACs of a mini-batch below which bfloat16 is slower on a CPU: a step of lenet5 at batch 64 (27 M) takes 1.1
times as long as in float32, one of cnn8 (4.8 G) 0.6 times."""


@dataclass(frozen=True)
class Precision:
    """Types behind a name of the scenario's `train.precision`.

    Attributes:
        weights: type of parameters, optimiser state and loss.
        autocast: type of convolutions, matrix products, and activations and gradients in messages; None: `weights`.
        tf32: True if a GPU may round the factors of float32 convolutions and matrix products to TensorFloat32.
    """

    weights: torch.dtype
    autocast: torch.dtype | None = None
    tf32: bool = False

    def activate(self) -> None:
        """Set this process to the precision, and cuDNN to deterministic convolutions.

        torch's defaults for cuDNN use TensorFloat32, and kernels that add numbers in the order in which threads finish.
        """
        torch.backends.cudnn.deterministic = True
        torch.set_float32_matmul_precision("high" if self.tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = self.tf32


PRECISIONS = {
    "float32": Precision(torch.float32),
    "float64": Precision(torch.float64),
    "bf16": Precision(torch.float32, autocast=torch.bfloat16),
    "tf32": Precision(torch.float32, tf32=True),
}
"""Precisions by their names in scenarios."""


def check_precision(name: str, device: torch.device, network: Network, batch_size: int) -> None:
    """Raise ScenarioError for a precision that `device` does not have, or with which this network would be slower."""
    reason = None
    if name == "bf16" and network.lora:
        reason = "bfloat16 has three digits, in which what adapters add to their weights is lost"
    elif name == "tf32":
        reason = _no_tensor_cores(device)
    elif name == "bf16":
        reason = _no_tensor_cores(device) if device.type == "cuda" else _slow_bf16(network, batch_size)
    if reason:
        raise ScenarioError(reason, key="train.precision", found=name, allowed="float32, float64")


def _no_tensor_cores(device: torch.device) -> str | None:
    if device.type != "cuda":
        return f"TensorFloat32 is a format of NVIDIA's GPUs, and steps run on {device.type}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return f"needs a GPU of the Ampere generation or newer, not {torch.cuda.get_device_name(device)}"
    return None


def _slow_bf16(network: Network, batch_size: int) -> str | None:
    """Return the reason why bfloat16 would be slower on this CPU; None if it would be faster."""
    if not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()):
        return "this processor has no bfloat16 instructions (AVX512_BF16 or AMX), so bfloat16 is slower than float32"
    depthwise = sum(layer.macs_by_kind["depthwise"] for layer in network.layers) / network.macs
    if depthwise > DEPTHWISE_SHARE:
        return (
            f"{depthwise:.0%} of the MACs of {network.name} are depthwise convolutions, which are slower in bfloat16 "
            "than in float32 on a CPU"
        )
    if network.macs * batch_size < SMALL_BATCH_MACS:
        return (
            f"a mini-batch of {network.macs * batch_size / 1e6:.3g} million MACs is so small that bfloat16 is slower "
            f"than float32 on a CPU (below {SMALL_BATCH_MACS / 1e6:.0f} million)"
        )
    return None
