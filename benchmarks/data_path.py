"""Training samples per second from memory, against a DataLoader with a transform per sample: goal at least 5 times.

    python -m benchmarks.data_path [--quick]

One epoch of a client's images of 3 x 32 x 32 in batches of 64, normalised, and cropped and flipped too. Ours gathers
uint8 images once an epoch and transforms by batch; theirs is what papers' code does: a torchvision data set that gives
PIL images, torchvision's transforms, and a DataLoader with shuffling, in the process itself and with two workers.
"""

import statistics

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from benchmarks.options import options
from benchmarks.pairs import alternate, ratio
from sfl_sim.data.batches import CROP_PADDING, ClientData, Images
from sfl_sim.data.loading import load

CPU = torch.device("cpu")
SAMPLES, BATCH = 2_000, 64


class PilImages(Dataset):
    """Data set of PIL images, which does the same for an index as torchvision.datasets.CIFAR10."""

    def __init__(self, data, transform):
        self.pixels = data.x_train.permute(0, 2, 3, 1).numpy()
        self.labels = data.y_train.tolist()
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.transform(Image.fromarray(self.pixels[i])), self.labels[i]


def ours(data, augment):
    images = Images(data, CPU, torch.float32, channels_last=True, augment=augment)
    client = ClientData([np.arange(SAMPLES)], BATCH, images=images)
    return lambda: [batch.load() for batch in client.batches(0, 1)]


def theirs(data, augment, workers):
    random = [transforms.RandomCrop(32, padding=CROP_PADDING), transforms.RandomHorizontalFlip()] if augment else []
    fixed = [transforms.ToTensor(), transforms.Normalize(data.mean.tolist(), data.std.tolist())]
    source = PilImages(data, transforms.Compose([*random, *fixed]))
    return lambda: list(DataLoader(source, BATCH, shuffle=True, num_workers=workers))


def main():
    given = options(__doc__)
    data = load("synthetic", shape=(3, 32, 32), samples=SAMPLES)
    rows = []
    for augment in (False, True):
        for workers in (0, 2):
            ours_s, theirs_s = alternate(ours(data, augment), theirs(data, augment, workers), given.pairs())
            found = ratio(theirs_s, ours_s)
            rows.append(
                {
                    "images": "cropped, flipped, normalised" if augment else "normalised",
                    "DataLoader workers": workers,
                    "ours samples/s": round(SAMPLES / statistics.median(ours_s)),
                    "DataLoader samples/s": round(SAMPLES / statistics.median(theirs_s)),
                    "times as fast": found["median"],
                    "quartiles": found["quartiles"],
                }
            )
    given.publish("data_path", rows)


if __name__ == "__main__":
    main()
