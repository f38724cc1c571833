"""Data of a user's own: arrays, tensors or torch data sets, as a `Dataset`; and a partition that a user has made."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from sfl_sim.data.dataset import MAX_BYTE, Dataset, measured, numbered, with_targets
from sfl_sim.data.folders import plain, stacked
from sfl_sim.data.hugging_face import are_tokens, of_tokens
from sfl_sim.errors import ScenarioError, calling_theirs, in_short, own_place, unreadable
from sfl_sim.goals import NO_LABEL
from sfl_sim.json_text import parsed_json

KEY = "data.factory"
FORMS = (
    "(x_train, y_train, x_test, y_test) as arrays or tensors, or (train, test) as data sets of torch or Hugging Face"
)


def as_dataset(given: Any) -> Dataset:
    """Make a data set of what a user gives, or of what the user's function returns.

    Samples of whole numbers are images (N, C, H, W) or (N, H, W), from 0 to 255, which are normalised by channel, or
    tokens (N, T) from 0 on; floating samples of any shape go into the network as they are. Labels may be whole numbers
    or texts: they are numbered in their order, and keep their values (or a torch data set's `classes`) as names. In
    their place may stand floating numbers (N,) or (N, K), sets of labels as flags 0 and 1 (N, L), or masks (N, H, W) of
    labels 0, 1, ... with 255 where there is none.

    Args:
        given: as in `FORMS`, or a `Dataset`, or a function without arguments that returns one of them.

    Raises ScenarioError if it is none of that, the function fails, or samples and labels do not fit together.
    """
    with calling_theirs(KEY):
        made = given() if callable(given) else given
    if isinstance(made, Dataset):
        return made
    if isinstance(made, Mapping) and {"train", "test"} <= made.keys():  # of Hugging Face
        made = made["train"], made["test"]
    if isinstance(made, Mapping) and "user_data" in made:
        problem = "is LEAF's JSON of one part; give the samples of all users, and data.partition.file the user of each"
        raise ScenarioError(problem, key=KEY, found=type(made).__name__, allowed=FORMS)
    are_arrays = isinstance(made, Sequence) and any(isinstance(part, np.ndarray | Tensor) for part in made)
    if not isinstance(made, Sequence) or len(made) not in ((4,) if are_arrays else (2, 4)):
        found = f"{len(made)} arrays" if are_arrays else type(made).__name__
        raise ScenarioError("is no data set", key=KEY, found=found, allowed=FORMS)
    try:
        made = [part.dataset if isinstance(part, DataLoader) else part for part in made]
        if len(made) == 2 and all(map(_is_table, made)) and are_tokens(made[0]):
            train, test = (part.with_format(None)[:] for part in made)
            return of_tokens("own data", train, test, KEY)
        parts = made if len(made) == 4 else [column for samples in made for column in _columns(samples)]
        _check_masks(parts)
        y_train, y_test = _labels(parts[1]), _labels(parts[3])
        _check_labels("training", parts[0], y_train)
        _check_labels("test", parts[2], y_test)
        x_train, x_test = _alike(_samples(parts[0]), _samples(parts[2]))
        data = _labelled(x_train, y_train, x_test, y_test, _classes(made[0]))
    except ScenarioError:
        raise
    except (Exception, SystemExit) as error:  # a user's data set may raise anything, too
        raise ScenarioError(f"cannot be read: {in_short(error)}{own_place(error)}", key=KEY, allowed=FORMS) from error
    if _kind(x_train[:0]) != _kind(x_test[:0]):
        problem = "has training and test samples of unequal shapes or types"
        raise ScenarioError(problem, key=KEY, found=f"{_kind(x_train)} and {_kind(x_test)}")
    return measured(data) if len(x_train) and x_train.ndim == 4 and not x_train.is_floating_point() else data


def read_indices(file: str, key: str) -> list[Any]:
    """Read what clients hold from a JSON file, which holds a list, or an npz file, with an array for each client.

    Raises ScenarioError if the file cannot be read.
    """
    path = Path(file).expanduser()
    try:
        if path.exists() and not (path.is_file() and path.stat().st_size):  # a pipe would block, or the kernel's log
            raise OSError("is no regular file, or empty")
        if path.suffix == ".npz":
            with path.open("rb") as content, np.load(content) as arrays:
                return [arrays[name] for name in arrays.files]
        found = parsed_json(path.read_text(), path, key=key)
    except ScenarioError as error:
        error.found = error.found or file
        raise
    except Exception as error:  # numpy and zipfile raise many kinds for a damaged archive
        raise ScenarioError(unreadable(path, error), key=key, found=file) from error
    if not isinstance(found, list):
        raise ScenarioError("is not a list", key=key, found=file)
    return found


def by_holder(given: Sequence[Any], n_samples: int, key: str) -> Sequence[Any]:
    """Return the sample indices of each client, which may be given as the holder of each sample: a name or a number.

    Clients are in the order of these names.

    Raises ScenarioError if there are not as many holders as samples.
    """
    if not len(given) or any(hasattr(part, "__len__") and not isinstance(part, str) for part in given):
        return given
    if len(given) != n_samples:
        allowed = f"{n_samples}, the training samples"
        raise ScenarioError("needs the holder of each sample", key=key, found=len(given), allowed=allowed)
    if missing := int(pd.isna(np.asarray(given, dtype=object)).sum()):
        raise ScenarioError("has samples without a holder", key=key, found=missing, allowed="0")
    _, numbers, counts = np.unique(np.asarray(given), return_inverse=True, return_counts=True)
    return np.split(np.argsort(numbers, kind="stable"), np.cumsum(counts)[:-1])


def _is_table(samples: Any) -> bool:
    """Return True for a data set of Hugging Face."""
    return hasattr(samples, "column_names") and hasattr(samples, "features")


def _columns(samples: Any) -> tuple[Tensor, Any]:
    """Gather the samples (N, ...) and the labels of a torch data set, or of Hugging Face."""
    if _is_table(samples):
        given, label = _column_names(samples)
        rows = samples.with_format(None)
        return _stacked(list(rows[given])), _labels(list(rows[label]))
    x, y = zip(*(samples[i] for i in range(len(samples))), strict=True)
    targets = [np.asarray(target) for target in y]
    are_single = all(target.size == 1 for target in targets)
    return _stacked(x), [target.item() for target in targets] if are_single else np.stack(targets)


def _classes(samples: Any) -> Sequence[Any]:
    """Return the names of labels that a data set brings; none if it brings none."""
    if _is_table(samples):
        return getattr(samples.features[_column_names(samples)[1]], "names", ())
    classes = getattr(samples, "classes", None)
    return () if classes is None else classes


def _column_names(table: Any) -> tuple[str, str]:
    """Return the columns of samples and labels of a data set of Hugging Face. Raises ScenarioError if they are unclear.

    Labels are those with names, or in a column `label` or `labels`; samples are the only other column.
    """
    columns = list(table.column_names)
    named = [column for column in columns if hasattr(table.features[column], "names")]
    labels = named if len(named) == 1 else [column for column in columns if column in ("label", "labels")]
    others = [column for column in columns if column not in labels]
    if len(labels) != 1 or len(others) != 1:
        problem = "needs one column of samples and one of labels; select_columns keeps two"
        raise ScenarioError(problem, key=KEY, found=", ".join(columns))
    return others[0], labels[0]


def _stacked(samples: Sequence[Any]) -> Tensor:
    """Make one tensor of samples; PIL images become uint8 (N, C, H, W), of whatever mode they are."""
    if isinstance(samples[0], Image.Image):
        return stacked([plain(image) for image in samples])
    return _tensor(np.stack([np.asarray(one) for one in samples]))


def _tensor(samples: NDArray[Any]) -> Tensor:
    """Make a tensor of an array, which torch wants to be one of numbers that can be written."""
    if samples.dtype.kind not in "biuf":
        raise ScenarioError("has samples that are no numbers", key=KEY, found=str(samples.dtype))
    if samples.dtype.kind == "u" and samples.itemsize > 1:  # of which torch knows no minimum
        samples = samples.astype(np.int64)
    return torch.from_numpy(np.require(samples, requirements="W"))


def _samples(given: Any) -> Tensor:
    """Convert samples to float32, or to uint8 where they are whole numbers, and large tokens to int32.

    Grey images (N, H, W) get a channel.
    """
    if isinstance(given, list | tuple) and len(given):
        given = _stacked(given)
    x = given.detach().cpu() if isinstance(given, Tensor) else _tensor(np.asarray(given))
    if x.is_floating_point():
        if not x.float().isfinite().all():
            raise ScenarioError("has samples with numbers that are not finite in float32", key=KEY, found=_kind(x))
        return x.float()
    least, most = (int(x.min()), int(x.max())) if x.numel() else (0, 0)
    if x.ndim not in (2, 3, 4) or least < 0 or most > (MAX_BYTE if x.ndim > 2 else torch.iinfo(torch.int32).max):
        problem = "has samples of whole numbers that are neither images nor tokens; make them floating"
        if x.ndim > 2 and least >= 0:
            problem = "has images of more than 8 bits; divide them to 255, or make them floating"
        found, allowed = f"{_kind(x)} from {least} to {most}", "(N, C, H, W) or (N, H, W) up to 255, (N, T)"
        raise ScenarioError(problem, key=KEY, found=found, allowed=allowed)
    if most > MAX_BYTE:
        return x.to(torch.int32)
    if x.ndim == 4 and x.shape[3] in (1, 3, 4) and min(x.shape[1:3]) > 4:
        problem = "has images with their channels last; put them first"
        raise ScenarioError(problem, key=KEY, found=_kind(x), allowed="(N, C, H, W)")
    return (x.unsqueeze(1) if x.ndim == 3 else x).to(torch.uint8)


def _alike(*parts: Tensor) -> list[Tensor]:
    """Give tokens of training and test samples one type, that of the larger ones."""
    are_large = any(x.dtype == torch.int32 for x in parts)
    return [x.to(torch.int32) if are_large and x.dtype == torch.uint8 else x for x in parts]


def _labels(given: Any) -> NDArray[Any]:
    """Make an array of labels; of a column of texts, as pandas gives it, one of texts and not of objects."""
    found = np.asarray(given)
    if found.dtype.kind != "O":
        return found
    if n_missing := int(pd.isna(found).sum()):
        raise ScenarioError("has samples without a label; leave them out", key=KEY, found=n_missing)
    return np.asarray(found.tolist())


def _check_masks(parts: Sequence[Any]) -> None:
    """Raise ScenarioError for a masked array of numpy with hidden values, which a tensor would show."""
    for name, part in zip(("training samples", "training labels", "test samples", "test labels"), parts, strict=True):
        rows = [part] if isinstance(part, np.ma.MaskedArray) else part if isinstance(part, list | tuple) else []
        if n_hidden := sum(int(np.ma.getmaskarray(row).sum()) for row in rows if np.ma.is_masked(row)):
            problem = f"has masked values in its {name}; leave their samples out, or fill them"
            raise ScenarioError(problem, key=KEY, found=n_hidden)


def _check_labels(part: str, x: Any, y: NDArray[Any]) -> None:
    if y.shape[:1] != (len(x),):
        problem = f"needs one label for each of {len(x)} {part} samples"
        raise ScenarioError(problem, key=KEY, found=f"an array {y.shape}", allowed=FORMS)
    if y.dtype.kind not in "biufUS" or (y.dtype.kind in "US" and y.ndim > 1):
        problem = "has labels that are neither numbers nor texts"
        raise ScenarioError(problem, key=KEY, found=f"an array {y.shape} of {y.dtype}")


def _labelled(
    x_train: Tensor, y_train: NDArray[Any], x_test: Tensor, y_test: NDArray[Any], classes: Sequence[Any]
) -> Dataset:
    """Make a data set with labels, or with targets and their groups.

    Args:
        classes: names of what is predicted; empty if there are none.

    Raises ScenarioError if training and test samples ask for different things, or the targets are of no `Goal`.
    """
    kinds = [next((kind for kind in ("f", "US") if y.dtype.kind in kind), "") for y in (y_train, y_test)]
    if y_train.shape[1:] != y_test.shape[1:] or kinds[0] != kinds[1]:
        problem = "has training and test labels of unequal shapes or types"
        found = " and ".join(f"{y.dtype} {y.shape}" for y in (y_train, y_test))
        raise ScenarioError(problem, key=KEY, found=found)
    if y_train.ndim == 1 and y_train.dtype.kind != "f":
        if y_test.dtype.kind == "i" and (y_test == -1).any() and not (y_train == -1).any():
            problem = "has test samples with the label -1, as those without a label have it, and no training sample has"
            raise ScenarioError(problem, key=KEY, found=-1, allowed="labels of the training samples")
        values, numbers = np.unique(np.concatenate([y_train, y_test]), return_inverse=True)
        if len(classes) and values.dtype.kind == "i" and values[0] < 0:  # -1 would be the last class
            problem = "has labels below 0, which its classes do not name"
            raise ScenarioError(problem, key=KEY, found=int(values[0]), allowed=f"0 to {len(classes) - 1}")
        names = tuple(str(classes[value] if len(classes) else value) for value in values.tolist())
        y = torch.from_numpy(numbers.astype(np.int64))
        return Dataset("own data", x_train, y[: len(y_train)], x_test, y[len(y_train) :], names)
    targets, test_targets = _targets(y_train), _targets(y_test)
    both = torch.cat([targets, test_targets])
    n = both.shape[1] if both.ndim == 2 else int(both[both != NO_LABEL].max()) + 1
    if len(classes) and len(classes) != n:
        if both.ndim == 2 or len(classes) < n:
            raise ScenarioError(f"needs a name for each of {n} targets", key=KEY, found=f"{len(classes)} classes")
        n = len(classes)
    names = tuple(map(str, classes)) if len(classes) else numbered(n)
    return with_targets("own data", x_train, targets, x_test, test_targets, names)


def _targets(y: NDArray[Any]) -> Tensor:
    """Make targets of what is no single label: numbers (N, K), flags of sets (N, L), or masks (N, H, W)."""
    if y.ndim == 2 and y.shape[1] > 1 and np.isin(y, (0, 1)).all() and y.any():
        return torch.from_numpy(y.astype(np.uint8))
    if y.dtype.kind == "f" and y.ndim <= 2:
        numbers = torch.from_numpy(y.astype(np.float32).reshape(len(y), -1))
        if not numbers.isfinite().all():
            raise ScenarioError("has targets that are not finite in float32", key=KEY, found=str(y.dtype))
        return numbers
    if y.ndim == 3 and y.dtype.kind in "biu" and np.isin(y, range(NO_LABEL + 1)).all() and (y != NO_LABEL).any():
        return torch.from_numpy(y.astype(np.uint8))
    raise ScenarioError(
        "has targets of no kind that is known", key=KEY, found=f"{y.dtype} {y.shape}",
        allowed="labels (N,), floating numbers (N, K), flags 0 and 1 (N, L), masks (N, H, W) of labels 0 to 254",
    )  # fmt: skip


def _kind(x: Tensor) -> str:
    return f"{'x'.join(map(str, x.shape))} {str(x.dtype).removeprefix('torch.')}"
