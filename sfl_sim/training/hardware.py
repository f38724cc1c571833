"""Hardware that trains: the device, the number of threads, the allocator, and floating-point precisions."""

import ctypes
import gc
import platform
from dataclasses import dataclass

import torch

from sfl_sim.errors import ScenarioError
from sfl_sim.models.network import Network

SMALL_BATCH_MACS = 20e6
"""Forward MACs of a mini-batch below which a second thread costs more than it gains.

A second thread makes lenet5 at batch 64 (27 M) 1.4 to 1.7 times as fast. On cnn_small and 8x8 digits at batch 16 (10 M)
it gains nothing, and on a busy machine its spinning makes a step eight times as slow. One thread also gives the same
bits on any number of cores.
"""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_NEVER_BYTES = 2**31 - 1


def pick_device(name: str) -> torch.device:
    """Return the device of this name; `auto` is the first GPU if there is one, else the CPU.

    Raises ScenarioError if there is no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        number = torch.zeros(1, device=name)
        number.item()  # `meta` has none
        return number.device
    except (RuntimeError, AssertionError) as error:
        reason = "there is no such device"
        if name.startswith("cuda"):  # torch says what is missing; for other names it lists all types of devices
            reason = f"cannot be used: {str(error).splitlines()[0]}"
        raise ScenarioError(reason, key="--device", found=name, allowed="auto, cpu, cuda") from error


def threads_for(batch_macs: float, available: int) -> int:
    """Return the number of intra-op threads for steps of `batch_macs` forward MACs, up to `available`."""
    return 1 if batch_macs < SMALL_BATCH_MACS else available


def keep_freed_memory() -> bool:
    """Stop glibc from returning large blocks to the kernel after every step; returns True if that is possible.

    Steps of mobilenet_v1 get 1.25 to 1.34 times as fast, of resnet18 1.02 to 1.07 times, with the same bits and about
    the same peak memory. Other C libraries are left as they are.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    return all(libc.mallopt(option, _NEVER_BYTES) == 1 for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD))


MANY_CLIENTS = 100_000
"""From how many clients on it is worth a fifth of a second to free their memory at once."""


def free(n_clients: int) -> None:
    """Return to the kernel what nothing uses any more, if it was of many clients.

    Clocks and flows name each other, so that Python collects them late, and glibc keeps what lies between used blocks.
    """
    if n_clients >= MANY_CLIENTS:
        gc.collect()
        if platform.libc_ver()[0] == "glibc":
            ctypes.CDLL(None).malloc_trim(0)


DEPTHWISE_SHARE = 0.01
"""Share of depthwise MACs from which bfloat16 is slower on a CPU: training steps of mobilenet_v1 (3 %) take 1.7 times
as long as in float32 and those of mobilenet_v2 (7 %) 1.1 times; without depthwise layers, cnn8, resnet18 and vgg11_bn
are 1.5 to 1.7 times as fast."""

SMALL_BF16_BATCH_MACS = 100e6
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


def check_precision(
    name: str, device: torch.device, network: Network, batch_size: int, has_gradients: bool = True
) -> None:
    """Raise ScenarioError for a precision that `device` does not have, or with which this network would be slower.

    Args:
        has_gradients: False if clients learn from differences of losses.
    """
    reason = None
    if name == "bf16" and network.lora:
        reason = "bfloat16 has three digits, in which what adapters add to their weights is lost"
    elif name == "bf16" and not has_gradients:
        reason = "bfloat16 has three digits, in which the differences of losses are lost from which clients learn"
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
    if network.macs * batch_size < SMALL_BF16_BATCH_MACS:
        return (
            f"a mini-batch of {network.macs * batch_size / 1e6:.3g} million MACs is so small that bfloat16 is slower "
            f"than float32 on a CPU (below {SMALL_BF16_BATCH_MACS / 1e6:.0f} million)"
        )
    return None
