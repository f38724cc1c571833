"""Token data sets of Hugging Face: sequences of unequal lengths of which every next token is predicted."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pyarrow import ipc, parquet
from torch import Tensor

from sfl_sim.data.dataset import PADDING, UNCOUNTED, Dataset, numbered
from sfl_sim.data.download import own_path
from sfl_sim.errors import ScenarioError, in_short, unreadable
from sfl_sim.goals import NO_TOKEN
from sfl_sim.json_text import parsed_json

IDS, MASK, LABELS, TEXT = "input_ids", "attention_mask", "labels", "text"
KEY = "data.path"
TokenColumns = Mapping[str, Sequence[Any]]


def hf(
    path: str | Path | None = None, tokenizer: str | Path | None = None, shape: Sequence[int] | None = None
) -> Dataset:
    """Tokens as tokenizers leave them, of a Hugging Face data set on disk; every next token is predicted.

    Its parts `train` and `test` have a column `input_ids`, and may have `attention_mask` (tokens with 0 are left out)
    and `labels` (-100 for tokens that are not predicted); or, with a tokenizer, a column `text`. No other column is
    read.

    Args:
        path: folder that `DatasetDict.save_to_disk` has written, or one with files `train*.parquet` and
            `test*.parquet`, in itself or in its folder `data`.
        tokenizer: folder that `tokenizer.save_pretrained` has written. Needs transformers.
        shape: (tokens,) that a network reads of a sequence at most; longer ones are cut.

    Raises ScenarioError if a part, a column or the tokenizer is missing, or they hold something else.
    """
    if not path:
        raise ScenarioError("hf needs the folder of the data set", key=KEY)
    if shape and len(shape) != 1:
        raise ScenarioError("is not [tokens]", key="data.shape", found=list(shape))
    read = _tokenizer(tokenizer) if tokenizer else None
    wanted = (TEXT,) if read else (IDS, MASK, LABELS)
    train, test = (_part(own_path(path), part, wanted) for part in ("train", "test"))
    names: Sequence[str] = ()
    if read:
        train, test = ({IDS: read(list(part[TEXT]), verbose=False)[IDS]} for part in (train, test))
        names = tuple(map(str, read.convert_ids_to_tokens(range(len(read)))))
    return of_tokens("hf", train, test, KEY, names, shape[0] if shape else None)


def are_tokens(table: Any) -> bool:
    """Return True for a data set of Hugging Face with columns of tokens alone, and not one label for each sequence."""
    columns = set(table.column_names)
    are_known = {IDS} <= columns <= {IDS, MASK, LABELS}
    return are_known and (LABELS not in columns or hasattr(table.with_format(None)[0][LABELS], "__len__"))


def of_tokens(
    name: str, train: TokenColumns, test: TokenColumns, key: str, names: Sequence[str] = (), most: int | None = None
) -> Dataset:
    """Make a data set of columns of tokens.

    Args:
        names: of tokens; by default their numbers.
        most: tokens that a network reads of a sequence at most.
    """
    rows = [_marked(part, which, key, most) for part, which in ((train, "training"), (test, "test"))]
    width = max(len(row) for part in rows for row in part)
    x_train, x_test = (_padded(part, width) for part in rows)
    nobody, nobody_of_tests = (torch.zeros(len(x), dtype=torch.int64) for x in (x_train, x_test))
    data = Dataset(name, x_train, nobody, x_test, nobody_of_tests, ("all",))
    return replace(data, token_names=tuple(names) or numbered(data.largest_token + 1))


def _marked(part: TokenColumns, which: str, key: str, most: int | None) -> list[NDArray[np.int32]]:
    """Return the tokens of each sequence; those that are not predicted are marked as in `UNCOUNTED`."""
    found = []
    for i, given in enumerate(part[IDS]):
        problem, ids = "", np.asarray(given)
        mask, labels = (np.asarray(part[column][i]) if column in part else None for column in (MASK, LABELS))
        if (
            ids.ndim != 1
            or ids.dtype.kind not in "iu"
            or not ids.size
            or ids.min() < 0
            or ids.max() > np.iinfo(np.int32).max
        ):
            problem = f"has {IDS} that are no tokens"
        elif any(column is not None and column.shape != ids.shape for column in (mask, labels)):
            problem = f"has another number of {IDS} than of {MASK} or {LABELS}"
        elif labels is not None and ((labels != NO_TOKEN) & (labels != ids)).any():
            problem = f"has {LABELS} that are neither its {IDS} nor {NO_TOKEN}: the next tokens are predicted"
        else:
            kept = np.flatnonzero(np.ones(len(ids)) if mask is None else mask)
            if len(kept) and kept[-1] - kept[0] >= len(kept):
                problem = f"has an {MASK} with zeros between ones"
            marked = ids if labels is None else np.where(labels == NO_TOKEN, UNCOUNTED - ids, ids)
            marked = marked[kept][: None if most is None else most + 1]
            if not problem and not (marked[1:] >= 0).any():
                problem = "has no token to predict: leave out what is empty, or a single token"
        if problem:
            raise ScenarioError(f"{which} sequence {i} {problem}", key=key, found=given if ids.size < 9 else ids.size)
        found.append(marked.astype(np.int32))
    if not found:
        raise ScenarioError(f"no {which} samples", key=key)
    return found


def _padded(rows: Sequence[NDArray[np.int32]], width: int) -> Tensor:
    x = np.full((len(rows), width), PADDING, dtype=np.int32)
    for line, row in zip(x, rows, strict=True):
        line[: len(row)] = row
    return torch.from_numpy(x)


def _part(folder: Path, part: str, wanted: Sequence[str]) -> TokenColumns:
    """Read those of the `wanted` columns that a part has; the first of them it must have."""
    if not folder.is_dir():
        raise ScenarioError("is no folder", key=KEY, found=str(folder))
    files = [*folder.glob(f"{part}*.parquet"), *(folder / "data").glob(f"{part}*.parquet")]
    state = folder / part / "state.json"
    if state.is_file():
        saved = parsed_json(state.read_text(), state, key=KEY)
        try:
            files = [state.with_name(file["filename"]) for file in saved["_data_files"]]
        except (LookupError, TypeError) as error:
            raise ScenarioError("does not name its files (_data_files)", key=KEY, file=str(state)) from error
    if not files:
        allowed = f"{part}*.parquet, or the folder {part} of DatasetDict.save_to_disk"
        raise ScenarioError(f"has no part `{part}`", key=KEY, found=str(folder), allowed=allowed)
    tables = []
    for file in sorted(files):
        try:
            with pa.memory_map(str(file)) as content:
                is_stream = file.suffix == ".arrow"
                tables.append(ipc.open_stream(content).read_all() if is_stream else parquet.read_table(content))
        except (OSError, pa.ArrowException) as error:
            raise ScenarioError(unreadable(file, error), key=KEY, found=str(file)) from error
    try:
        table = pa.concat_tables(tables)
    except pa.ArrowException as error:
        problem = f"has files with unequal columns in its part `{part}`"
        raise ScenarioError(problem, key=KEY, found=str(folder)) from error
    if wanted[0] not in table.column_names:
        remedy = "; data.tokenizer reads its column text" if TEXT in table.column_names else ""
        found = ", ".join(table.column_names)
        raise ScenarioError(f"has no column {wanted[0]} in its part `{part}`{remedy}", key=KEY, found=found)
    return {name: table.column(name).to_pylist() for name in wanted if name in table.column_names}


def _tokenizer(folder: str | Path) -> Any:
    """Load a tokenizer of transformers from a folder: nothing comes from the network, and no code is run."""
    key = "data.tokenizer"
    try:
        from transformers import AutoTokenizer
    except ModuleNotFoundError as error:
        raise ScenarioError("needs transformers: pip install 'sfl-sim[hf]'", key=key, found=str(folder)) from error
    path = own_path(folder)
    if not path.is_dir():
        raise ScenarioError("is no folder", key=key, found=str(folder))
    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except Exception as error:  # transformers raises many kinds for a folder of something else
        raise ScenarioError(f"holds no tokenizer: {in_short(error)}", key=key, found=str(folder)) from error
