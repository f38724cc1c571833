#!/bin/sh
# Flower's DirichletPartitioner does not balance the sizes of partitions unless it is asked to.
#
# Expected: the partition of the paper that the class names (Yurochkin et al. 2019) and of the code that most studies
#   copied from it: a partition that already holds its even share of the samples gets nothing more. The docstring says
#   that balancing is True in that code, the example of the docstring uses it, and a comment in the body calls it "the
#   default option".
# Seen: the default of self_balancing is False. 6,000 samples of ten labels over 20 partitions with alpha 0.5, 30 seeds:
#   the coefficient of variation of sizes is 0.413 by default and 0.282 with balancing. So two studies with
#   "Dirichlet 0.5" differ by half in how unequal clients are.
# Source: flwr_datasets/partitioner/dirichlet_partitioner.py, the signature of __init__, and the comment above
#   _avg_num_of_samples_per_partition.
# Versions: flwr-datasets 0.6.1, numpy 2.4.6, datasets 4.8.5.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet flwr-datasets==0.6.1 numpy==2.4.6 datasets==4.8.5
"$folder/venv/bin/python" - <<'END'
from importlib.metadata import version

import numpy as np
from datasets import Dataset
from flwr_datasets.partitioner import DirichletPartitioner

print({name: version(name) for name in ("flwr-datasets", "numpy", "datasets")})
samples = Dataset.from_dict({"label": [number % 10 for number in range(6000)]})


def variation(**options):
    """Return the mean coefficient of variation of partitions' sizes over seeds."""
    found = []
    for seed in range(30):
        partitioner = DirichletPartitioner(20, "label", 0.5, seed=seed, **options)
        partitioner.dataset = samples
        sizes = np.array([len(partitioner.load_partition(number)) for number in range(20)])
        found.append(sizes.std() / sizes.mean())
    return float(np.mean(found))


seen = {"by default": variation(), "balanced": variation(self_balancing=True), "not": variation(self_balancing=False)}
print({name: round(value, 3) for name, value in seen.items()})
assert seen["by default"] == seen["not"]
assert abs(seen["not"] - 0.413) < 0.002
assert abs(seen["balanced"] - 0.282) < 0.002
END
