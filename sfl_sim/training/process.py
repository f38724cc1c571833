"""Settings of the whole process that change what a run computes: set for it, and given back to who has called it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import backends

from sfl_sim.models.global_draws import drawing

KEPT = object()
"""Stands for a setting that stays as it is until the run sets it itself."""


def _flushes_denormals() -> bool:
    """Return True if this processor takes numbers that are almost zero for zero; torch does not say."""
    return not torch.tensor(1e-39).mul(1)


Switch = tuple[Callable[[], Any], Callable[[Any], object], object]


def _attribute(owner: object, name: str, value: object) -> Switch:
    return partial(getattr, owner, name), partial(setattr, owner, name), value


OF_PRODUCTS = {backends: "none", backends.mkldnn: "none"} | {
    getattr(backend, name, None): value
    for backend, names, value in (
        (backends.mkldnn, ("conv", "rnn"), "none"),
        (backends.mkldnn, ("matmul",), KEPT),
        (backends.cudnn, ("conv", "rnn"), KEPT),
        (backends.cuda, ("matmul",), KEPT),
    )
    for name in names
}
"""Where newer versions of torch have precisions of products; those that stay are set by their older names."""
SETTINGS: list[Switch] = [
    (torch.get_default_dtype, torch.set_default_dtype, torch.float32),
    (torch.get_num_threads, torch.set_num_threads, KEPT),
    *((partial(torch.is_autocast_enabled, kind), partial(torch.set_autocast_enabled, kind), False)
      for kind in ("cpu", "cuda")),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 0),
    (_flushes_denormals, torch.set_flush_denormal, False),
    (backends.cuda.flash_sdp_enabled, backends.cuda.enable_flash_sdp, True),
    (backends.cuda.mem_efficient_sdp_enabled, backends.cuda.enable_mem_efficient_sdp, True),
    (backends.cuda.math_sdp_enabled, backends.cuda.enable_math_sdp, True),
    (backends.cuda.cudnn_sdp_enabled, backends.cuda.enable_cudnn_sdp, True),
    (backends.mha.get_fastpath_enabled, backends.mha.set_fastpath_enabled, True),
    _attribute(backends.mkldnn, "enabled", value=True),
    _attribute(backends.cudnn, "enabled", value=True),
    _attribute(backends.cudnn, "benchmark", value=False),
    _attribute(backends.cudnn, "deterministic", KEPT),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest"),
    _attribute(backends.cudnn, "allow_tf32", KEPT),
    *(_attribute(owner, "fp32_precision", value) for owner, value in OF_PRODUCTS.items()
      if hasattr(owner, "fp32_precision")),
]  # fmt: skip
"""How a setting is read and written, and its value when a run begins; they are given back in this order."""


@contextmanager
def own_process() -> Iterator[None]:
    """Return a context in which a run computes what it would compute in a new process, whatever the caller has set.

    That goes for `SETTINGS`, for gradients and the device of new tensors, for warnings of numpy, and for the global
    random generators, which begin as those of torch do. All are given back.
    """
    with ExitStack() as stack:
        stack.enter_context(drawing(torch.Generator().initial_seed()))
        stack.callback(_write, [_read(setting) for setting in SETTINGS])
        _write([value for *_, value in SETTINGS])
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        yield


def _read(switch: Switch) -> object:
    try:
        return switch[0]()
    except RuntimeError:  # two names of a setting say different things; what they stand for is read by another name
        return KEPT


def _write(values: Sequence[object]) -> None:
    for switch, value in zip(SETTINGS, values, strict=True):
        if value is not KEPT and _read(switch) != value:
            switch[1](value)
