"""Rows of `hf:dataset[:split]`: a dataset of the Hugging Face hub, or a folder on disk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from skpo.errors import ProblemError, unknown
from skpo.network import hub_reachable
from skpo.problems.rows import Row

PARAMETERS = ("name", "revision")
WITHOUT_NETWORK = (
    "Without a network, save the dataset where there is one (`load_dataset(...).save_to_disk(FOLDER)`) and use hf:FOLDER, "
    "or use a .parquet file."
)


def hub_rows(source: str, dataset: str, values: dict[str, str]) -> Iterator[Row]:
    """Rows of a dataset, named `hf:owner/name:train, row 17`, counted from 0.

    dataset: `owner/name[:split]` or `folder[:split]`; the split is `train` where none is given. A folder written by
             `save_to_disk` is read as it is; any other goes to `datasets.load_dataset`.
    values:  `name` (the dataset's configuration, such as `main` for gsm8k) and `revision`.

    Raises `ProblemError` where the dataset, or the split, isn't there.
    """
    for key in values:
        if key not in PARAMETERS:
            raise ProblemError(f"{source}: {unknown('parameter', key, [*PARAMETERS, 'duplicates'])}")
    path, _, split = dataset.partition(":")
    if not path:
        raise ProblemError(f"{source}: no dataset. Write hf:owner/name or hf:folder.")
    try:
        table = _load(path, split, values)
    except ProblemError as error:
        raise ProblemError(f"{source}: {error}") from None
    if len(table) == 0:
        raise ProblemError(f"{source}: no problems in this dataset.")
    for number, row in enumerate(table):
        yield f"{source}, row {number}", row


def _load(path: str, split: str, values: dict[str, str]) -> Any:
    """The `datasets.Dataset` of one split."""
    import datasets

    folder = Path(path)
    saved = [folder / "dataset_dict.json", folder / "state.json"]
    if any(file.exists() for file in saved):
        loaded = datasets.load_from_disk(path)
        if isinstance(loaded, datasets.DatasetDict):
            wanted = split or "train"
            if wanted not in loaded:
                raise ProblemError(unknown("split", wanted, loaded))
            return loaded[wanted]
        if split and split != str(loaded.split):
            raise ProblemError(f'this folder holds one dataset without splits. Leave ":{split}" out.')
        return loaded
    offline = not folder.exists() and not hub_reachable()
    try:
        with _offline() if offline else contextlib.nullcontext():
            return datasets.load_dataset(path, split=split or "train", **values)
    except Exception as error:  # of many kinds: no network, no such name, no such split, a missing configuration
        reason = " ".join(str(error).split()) or "no reason given"
        if isinstance(error, ValueError) and "split" in reason.lower():
            raise ProblemError(f"{reason} Write hf:{path}:SPLIT.") from None
        if isinstance(error, ValueError) and "config" in reason.lower():
            raise ProblemError(f"{reason} Choose one with ?name=CONFIG after the source.") from None
        if offline:
            raise ProblemError(
                f"the hub can't be reached from here, and no copy is in the cache. {WITHOUT_NETWORK}"
            ) from None
        raise ProblemError(
            f"can't be loaded ({type(error).__name__}: {reason}). Check the name. {WITHOUT_NETWORK}"
        ) from None


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Let `datasets` look in its cache only: spares the user a minute of retries where the hub can't be reached."""
    import datasets
    from huggingface_hub import constants

    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before
