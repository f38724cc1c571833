"""Devices by name, an allocator that keeps freed memory, and precisions: refusals, the wire, the numbers."""

import platform
import resource

import pytest
import torch
from audit import BF16, Audit, single
from small_world import simulate

from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.models.forward_settings import ForwardSettings
from sfl_sim.models.lora import Lora
from sfl_sim.models.zoo import MODELS, network
from sfl_sim.training.evaluate import evaluate
from sfl_sim.training.hardware import PRECISIONS, check_precision, keep_freed_memory, pick_device


def test_auto_is_a_gpu_if_there_is_one():
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert pick_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "CPU", "cpu:x", "meta"])
def test_an_unknown_device_is_one_short_line(name):
    with pytest.raises(ScenarioError) as error:
        pick_device(name)
    assert (error.value.key, error.value.found, error.value.allowed) == ("--device", name, "auto, cpu, cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_missing_says_what_is_missing():
    with pytest.raises(ScenarioError, match=r"cannot be used: \S") as error:
        pick_device("cuda")
    assert (error.value.key, error.value.found) == ("--device", "cuda")


def page_faults_of_large_blocks():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(2**24)  # 64 MiB, above every threshold that glibc would choose itself: touched and freed
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_freed_blocks_are_used_again_without_page_faults():
    assert keep_freed_memory()
    for _ in range(4):  # the heap grows until a block of this size has its place
        page_faults_of_large_blocks()
    assert page_faults_of_large_blocks() < 1_000  # by default 82,000: every block is mapped anew


CPU = torch.device("cpu")


@pytest.fixture
def with_bf16(monkeypatch):
    """A processor with bfloat16 instructions."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)


def net(name):
    return network(MODELS[name], (1, 28, 28) if name in ("lenet5", "cnn8") else (3, 32, 32), 10)


def refused(name, network, batch_size=64):
    with pytest.raises(ScenarioError) as error:
        check_precision(name, CPU, network, batch_size)
    assert (error.value.key, error.value.found) == ("train.precision", name)
    return error.value.problem


@pytest.mark.parametrize("name", ["cnn8", "vgg11_bn"])
def test_bf16_is_for_large_dense_convolutions(name, with_bf16):
    check_precision("bf16", CPU, net(name), batch_size=64)


@pytest.mark.parametrize(("name", "number"), [("mobilenet_v1", "3%"), ("mobilenet_v2", "7%"), ("lenet5", "26.7")])
def test_bf16_is_refused_where_it_is_known_to_lose(name, number, with_bf16):
    assert number in refused("bf16", net(name))


def test_bf16_is_refused_with_adapters_which_it_would_round_away(with_bf16):
    assert "adapters" in refused("bf16", network(MODELS["cnn8"], (3, 32, 32), 10, lora=Lora(targets=("conv1",))))


def test_bf16_is_refused_where_clients_learn_from_differences_of_losses(with_bf16):
    with pytest.raises(ScenarioError, match="differences of losses"):
        check_precision("bf16", CPU, net("cnn8"), 64, has_gradients=False)


def test_bf16_is_refused_without_instructions_for_it_and_tf32_on_a_cpu(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert "AVX512_BF16" in refused("bf16", net("cnn8"))
    assert "cpu" in refused("tf32", net("cnn8"))


def test_float32_means_float32_on_a_gpu_too():
    """torch's default lets convolutions use TensorFloat32."""
    torch.backends.cudnn.allow_tf32 = True
    PRECISIONS["float32"].activate()
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32
    PRECISIONS["tf32"].activate()
    assert torch.backends.cudnn.allow_tf32
    assert torch.backends.cuda.matmul.allow_tf32
    PRECISIONS["float32"].activate()


@pytest.mark.parametrize("name", sorted(METHODS))
def test_declared_bytes_are_the_real_bytes_under_bf16(name):
    audit = Audit()
    simulate(name, single(BF16, cut=2), executor=audit)
    assert {kind for kind, *_ in audit.weighed} >= {"model"}
    assert all(declared == real for _, declared, real in audit.weighed)


def test_bf16_halves_the_activations_and_gradients_on_the_wire_and_not_the_models():
    def weighed(forward_settings):
        *_, rows = simulate("splitfed_v2", single(forward_settings, device=None))
        sent = rows[rows["bytes"] > 0]
        return {kind: sent["bytes"][sent["kind"] == kind] for kind in (b"smashed", b"gradients", b"model")}

    full, half = weighed(ForwardSettings()), weighed(BF16)
    labels = 8 * 4  # bytes of a whole mini-batch
    assert half[b"smashed"].max() - labels == (full[b"smashed"].max() - labels) // 2
    assert (half[b"gradients"] * 2 == full[b"gradients"]).all()
    assert (half[b"model"] == full[b"model"]).all()


def test_under_bf16_weights_and_optimiser_stay_float32_and_follow_float32_training():
    usual, *_ = simulate("splitfed_v2", single(ForwardSettings()))
    found, *_ = simulate("splitfed_v2", single(BF16))
    start = single(ForwardSettings()).split(1)
    for before, expected, got in zip(start, usual.model(), found.model(), strict=True):
        assert got.weights.flat.dtype == torch.float32
        moved = (expected.weights.flat - before.weights.flat).norm()
        off = (expected.weights.flat - got.weights.flat).norm()
        assert 0 < off < 0.2 * moved  # bfloat16 has 8 bits; a processor without instructions for it is 10 % off
    assert found.part2.weights.momentum.dtype == torch.float32


def test_evaluation_runs_in_the_precision_of_training():
    x = torch.randint(0, 256, (6, 1, 4, 4), dtype=torch.uint8)
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    losses = []
    for forward_settings in (ForwardSettings(), BF16):
        model = single(forward_settings).split(1)
        losses.append(evaluate(model, x, y, 3, lambda x: x.float() / 255).loss)
        assert model[0].weights(x.float() / 255, training=False).dtype == model[0].part.wire_dtype
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
