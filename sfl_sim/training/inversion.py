"""Inversion: a network that learns to draw samples from what crosses the cut (docs/methods/leakage.md#inversion)."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from sfl_sim.rng import stream, torch_seed

WIDTH, GROUPS, HIDDEN = 64, 8, 256
BATCH, LR = 16, 1e-3
Shape = tuple[int, ...]


def invert(
    z: Tensor,
    x: Tensor,
    unknown: Tensor,
    epochs: int,
    seed: int,
    n_tokens: int = 0,
    on_epoch: Callable[[int], None] = lambda epoch: None,
) -> Tensor:
    """Train a decoder on known pairs, and give what it makes of z of `unknown` samples (m, ...).

    Args:
        z: what has crossed the cut (n, ...).
        x: what it was made of: numbers in [0, 1] (n, ...), or tokens (n, T) below `n_tokens`.
        unknown: more of what has crossed the cut.
        epochs: passes over the pairs.
        seed: of the decoder's weights and of the order.
        n_tokens: number of different tokens; 0 for numbers.
        on_epoch: is called before each pass, with the number of those done.
    """
    with torch.random.fork_rng(devices=[z.device] if z.is_cuda else []):
        torch.manual_seed(torch_seed(seed, "decoder"))
        decode = decoder(tuple(z.shape[1:]), tuple(x.shape[1:]), n_tokens).to(z.device)
    decode.to(memory_format=torch.channels_last)  # twice as fast on CPUs
    middle, scale = z.mean(), z.std().clamp(min=torch.finfo(z.dtype).tiny)
    optimiser = torch.optim.Adam(decode.parameters(), LR)
    for epoch in range(epochs):
        on_epoch(epoch)
        order = torch.from_numpy(stream(seed, "decoder's order", epoch).permutation(len(z))).to(z.device)
        for chosen in torch.split(order, BATCH):
            optimiser.zero_grad()
            outputs = decode((z[chosen] - middle) / scale)
            loss = (
                cross_entropy(outputs.flatten(0, 1), x[chosen].flatten()) if n_tokens else mse_loss(outputs, x[chosen])
            )
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    with torch.inference_mode():
        samples = torch.cat([decode((part - middle) / scale) for part in torch.split(unknown, BATCH)])
    return samples.argmax(dim=-1) if n_tokens else samples


def decoder(features: Shape, sample: Shape, n_tokens: int = 0) -> nn.Sequential:
    """Build the decoder from features at a cut to a sample: images (C, H, W), tokens (T,) as logits (T, V), or numbers.

    Features of a transformer (T, D) are folded to the grid of an image's patches, without the class token.
    """
    if n_tokens:
        if len(features) == 2 and features[0] == sample[0]:
            return nn.Sequential(nn.Linear(features[1], n_tokens))
        return nn.Sequential(
            nn.Flatten(), nn.Linear(math.prod(features), sample[0] * n_tokens), nn.Unflatten(1, (sample[0], n_tokens))
        )
    if len(sample) != 3:
        n = math.prod(sample)
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(features), HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, n),
                             nn.Sigmoid(), nn.Unflatten(1, sample))  # fmt: skip
    channels, height, width = sample
    if len(features) == 2 and math.isqrt(features[0]) ** 2 in (features[0], features[0] - 1):
        side = math.isqrt(features[0])
        first: list[nn.Module] = [Fold(side), *_block(features[1])]
        small = side, side
    elif len(features) == 3:
        first = _block(features[0])
        small = features[1], features[2]
    else:
        small = math.ceil(height / 4), math.ceil(width / 4)
        first = [
            nn.Flatten(),
            nn.Linear(math.prod(features), WIDTH * math.prod(small)),
            nn.Unflatten(1, (WIDTH, *small)),
        ]
    up: list[nn.Module] = []
    while small[0] < height or small[1] < width:
        small = min(2 * small[0], height), min(2 * small[1], width)
        up += [nn.Upsample(small), *_block(WIDTH)]
    fitted = nn.Upsample((height, width), mode="bilinear")
    return nn.Sequential(*first, *up, fitted, nn.Conv2d(WIDTH, channels, 3, padding=1), nn.Sigmoid())


class Fold(nn.Module):
    """Lays tokens (n, T, D) out as a grid (n, D, side, side), without the class token in front."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, tokens: Tensor) -> Tensor:
        """Fold the last side x side tokens."""
        return tokens[:, -(self.side**2) :].transpose(1, 2).reshape(len(tokens), -1, self.side, self.side)


def _block(channels: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, WIDTH, 3, padding=1), nn.GroupNorm(GROUPS, WIDTH), nn.ReLU()]
