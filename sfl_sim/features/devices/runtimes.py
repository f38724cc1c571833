"""Runtimes of devices: a part of a network exported to each, and its forward pass there, on this machine."""

import copy
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sfl_sim.errors import ScenarioError, in_short
from sfl_sim.models.layers import hand_on
from sfl_sim.models.replica import Replica

TORCH, OTHER = "torch", "other"
SAME = 1e-4
"""Largest difference from torch's output that counts as rounding, over the largest number of that output."""
Pass = Callable[[], NDArray[Any]]
"""A forward pass, which gives the output."""


class Runtime(NamedTuple):
    """How a runtime gets a module, and runs it.

    Attributes:
        modules: what it imports, and the names of the packages that bring it; the first gives its version.
        export: writes a module, as it is in evaluation, to a file; it gets a batch, too.
        load: makes the forward pass of such a file with this batch, by so many threads.
        samples: how many it takes in a call at most; None: any number.
    """

    modules: dict[str, str]
    export: Callable[[nn.Module, Tensor, Path], None]
    load: Callable[[Path, Tensor, int], Pass]
    samples: int | None = None


def _to_onnx(module: nn.Module, x: Tensor, file: Path) -> None:
    torch.onnx.export(module, (x,), str(file), dynamo=False, input_names=["x"], output_names=["y"])


def _onnxruntime(file: Path, x: Tensor, threads: int) -> Pass:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    samples = {"x": x.numpy()}
    return lambda: session.run(None, samples)[0]


def _openvino(file: Path, x: Tensor, threads: int) -> Pass:
    import openvino

    exact = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}  # else bfloat16, where there is some
    request = openvino.compile_model(str(file), "CPU", exact).create_infer_request()
    samples = [x.numpy()]
    return lambda: request.infer(samples)[0]


def _to_mnn(module: nn.Module, x: Tensor, file: Path) -> None:
    import_module("MNN")  # which makes `_tools` known
    import _tools  # MNN.tools.mnnconvert would call pip to install a package that reports usage

    onnx = file.with_suffix(".onnx")
    _to_onnx(module, x, onnx)
    _tools.mnnconvert(["", "-f", "ONNX", "--modelFile", str(onnx), "--MNNModel", str(file), "--bizCode", "sfl-sim"])


def _mnn(file: Path, x: Tensor, threads: int) -> Pass:
    import MNN.expr
    import MNN.nn

    manager = MNN.nn.create_runtime_manager(({"backend": "CPU", "numThread": threads, "precision": "high"},))
    network = MNN.nn.load_module_from_file(str(file), ["x"], ["y"], runtime_manager=manager)
    whole = x.dtype == torch.int64
    kind, numbers = (MNN.expr.int if whole else MNN.expr.float), x.numpy().astype(np.int32 if whole else np.float32)

    def run() -> NDArray[Any]:
        samples = MNN.expr.const(numbers, list(x.shape), MNN.expr.NCHW, kind)  # which MNN may write over
        return np.array(MNN.expr.convert(network.forward([samples])[0], MNN.expr.NCHW).read())

    return run


def _to_ncnn(module: nn.Module, x: Tensor, file: Path) -> None:
    import pnnx

    traced = torch.jit.trace(module, x, check_trace=False)  # type: ignore[no-untyped-call]
    torch.jit.save(traced, str(file))
    shape = f"inputshape={list(x.shape)}{'i64' if x.dtype == torch.int64 else 'f32'}".replace(" ", "")
    written = (f"ncnn{end}={file.with_suffix(f'.ncnn.{end}')}" for end in ("param", "bin"))
    # pnnx.convert would import the Python that is written, too, which numbered layers make invalid
    subprocess.run([pnnx.EXEC_PATH, str(file), shape, "fp16=0", *written], cwd=file.parent, check=True)


def _ncnn(file: Path, x: Tensor, threads: int) -> Pass:
    import ncnn

    network = ncnn.Net()
    network.opt.num_threads = threads
    for shorter in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage"):
        setattr(network.opt, f"use_{shorter}", False)
    written = file.with_suffix(".ncnn.param"), file.with_suffix(".ncnn.bin")
    if network.load_param(str(written[0])) or network.load_model(str(written[1])):  # to run it now would end Python
        raise ValueError("pnnx has not written what ncnn can load")
    numbers = x[0].numpy().astype(np.int32 if x.dtype == torch.int64 else np.float32)
    sample = ncnn.Mat(numbers).clone()  # a Mat does not keep alive what it is made of

    def run() -> NDArray[Any]:
        extractor = network.create_extractor()
        extractor.input("in0", sample)
        return np.array(extractor.extract("out0")[1])[None]

    return run


def _to_litert(module: nn.Module, x: Tensor, file: Path) -> None:
    import litert_torch

    litert_torch.convert(module, (x,)).export(str(file))


def _litert(file: Path, x: Tensor, threads: int) -> Pass:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(file), num_threads=threads)
    interpreter.allocate_tensors()
    (entry,), (leaves,) = interpreter.get_input_details(), interpreter.get_output_details()
    samples = x.numpy().astype(entry["dtype"])

    def run() -> NDArray[Any]:
        interpreter.set_tensor(entry["index"], samples)
        interpreter.invoke()
        outputs: NDArray[Any] = interpreter.get_tensor(leaves["index"])
        return outputs

    return run


RUNTIMES = {
    "onnxruntime": Runtime({"onnxruntime": "onnxruntime", "onnx": "onnx"}, _to_onnx, _onnxruntime),
    "openvino": Runtime({"openvino": "openvino", "onnx": "onnx"}, _to_onnx, _openvino),
    "mnn": Runtime({"MNN": "MNN", "onnx": "onnx"}, _to_mnn, _mnn),
    "ncnn": Runtime({"ncnn": "ncnn", "pnnx": "pnnx"}, _to_ncnn, _ncnn, samples=1),
    "litert": Runtime({"ai_edge_litert": "ai-edge-litert", "litert_torch": "litert-torch"}, _to_litert, _litert),
}
NAMES = [TORCH, *RUNTIMES, OTHER]


def check(name: str) -> None:
    """Raise ScenarioError for a runtime that nobody knows, or whose packages are not there."""
    if name not in NAMES:
        raise ScenarioError("no such runtime", key="--runtime", found=name, allowed=NAMES)
    runtime = RUNTIMES.get(name)
    if runtime and not all(map(find_spec, runtime.modules)):
        missing = f"pip install {' '.join(runtime.modules.values())}"
        raise ScenarioError("this runtime is not installed", key="--runtime", found=name, allowed=missing)


def described(name: str) -> dict[str, Any]:
    """Give cells of a table: runtime, its version, processor and threads; none for `OTHER`."""
    if name == OTHER:
        return {}
    package = next(iter(RUNTIMES[name].modules.values())) if name in RUNTIMES else TORCH
    return {"runtime": name, "version": version(package), "processor": _processor(), "threads": torch.get_num_threads()}


def _processor() -> str:
    cores = Path("/proc/cpuinfo")
    lines = cores.read_text(errors="replace").splitlines() if cores.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))]
    return names[0] if names else platform.processor() or platform.machine()


class CannotRun(Exception):
    """A runtime cannot run a part, with the reason and the layer."""


def exported(name: str, replica: Replica, x: Tensor, file: Path, threads: int) -> None:
    """Write a part for a runtime, and hold its output against torch's.

    Raises CannotRun with the first layer that the runtime cannot run, or computes otherwise.
    """
    most = RUNTIMES[name].samples
    if most and len(x) > most:
        raise CannotRun(f"{name} takes {most} sample{'s' * (most > 1)} in a call")
    x = x.contiguous()  # ncnn takes the memory as it lies
    if problem := _problem(name, _module(replica), x, file, threads):
        for layer, module in _module(replica).named_children():
            hand_on(nn.Sequential(module))
            if alone := _problem(name, module, x, file.with_stem(f"{file.stem}-layer"), threads):
                raise CannotRun(f"layer {layer}: {alone}")
            with torch.no_grad():
                x = module(x).contiguous()
        raise CannotRun(problem)


def loaded(name: str, x: Tensor, file: Path, threads: int) -> Pass:
    """Make the forward pass of a part that has been exported."""
    with _quiet():
        return RUNTIMES[name].load(file, x.contiguous(), threads)


def _problem(name: str, module: nn.Module, x: Tensor, file: Path, threads: int) -> str | None:
    with torch.no_grad():
        expected = module(x).numpy()
    try:
        with _quiet():
            RUNTIMES[name].export(module, x, file)
        seen = loaded(name, x, file, threads)()
    except Exception as error:  # whatever exporters raise
        return in_short(error)
    if seen.size != expected.size:  # ncnn has no axis for samples, and may keep others of length 1
        return f"gives shape {list(seen.shape)} instead of {list(expected.shape)}"
    apart = float(np.abs(seen.reshape(expected.shape) - expected).max())
    return None if apart <= SAME * float(np.abs(expected).max()) else f"its output differs from torch's by {apart:.3g}"


def _module(replica: Replica) -> nn.Sequential:
    """Return a part as a module of its own, in evaluation."""
    weights = replica.weights
    weights.part.lend(weights.part.views(weights.flat), weights.frozen, weights.buffer_views, training=False)
    module = copy.deepcopy(weights.part.skeleton)
    for inner in module.modules():
        for name, tensor in inner._parameters.items():
            if tensor is not None:
                inner._parameters[name] = nn.Parameter(tensor.detach().contiguous(), requires_grad=False)
    return module


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what exporters print, and warn of, from the terminal."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in enumerate(kept, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.close(nowhere)
