"""Problems from Hugging Face datasets: folders on disk, and the hub out of reach."""

from pathlib import Path
from typing import Any, NoReturn

import datasets
import pytest

from skpo.errors import ProblemError
from skpo.problems import load_problems

ROWS = [{"problem": "1+1?", "solution": "2", "level": 1}, {"problem": "2+2?", "solution": "4", "level": 2}]
KEYS = {"prompt_key": "problem", "answer_key": "solution"}


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """A folder with the splits `train` and `test`."""
    train = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"train": train, "test": train.select([1])}).save_to_disk(tmp_path / "set")
    return f"hf:{tmp_path / 'set'}"


def test_saved_splits(saved: str) -> None:
    train = load_problems(saved, **KEYS)  # type: ignore[arg-type]
    assert [(p.prompt, p.answer, p.columns) for p in train] == [
        ("1+1?", "2", {"level": 1}),
        ("2+2?", "4", {"level": 2}),
    ]
    assert [p.answer for p in load_problems(f"{saved}:test", **KEYS)] == ["4"]  # type: ignore[arg-type]


def test_errors_name_the_row_and_the_split(saved: str) -> None:
    with pytest.raises(ProblemError) as error:
        load_problems(f"{saved}:test", prompt_key="problem")
    expected = f'{saved}:test, row 0: no "answer"; columns here: problem, solution, level. Use --answer-key solution.'
    assert str(error.value) == expected
    with pytest.raises(ProblemError, match=r'unknown split "tests". Did you mean "test".'):
        load_problems(f"{saved}:tests")
    with pytest.raises(ProblemError, match=r'unknown parameter "nam". Did you mean "name".'):
        load_problems(f"{saved}?nam=x")


def test_saved_without_splits(tmp_path: Path) -> None:
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path)
    assert len(load_problems(f"hf:{tmp_path}", **KEYS)) == 2  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match=r'without splits. Leave ":test" out'):
        load_problems(f"hf:{tmp_path}:test")


def test_folder_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "files"
    folder.mkdir()
    datasets.Dataset.from_list(ROWS).to_parquet(folder / "train.parquet")
    assert len(load_problems(f"hf:{folder}", **KEYS)) == 2  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match=r'Unknown split "dev"'):
        load_problems(f"hf:{folder}:dev")


def test_duplicates_of_a_dataset(tmp_path: Path) -> None:
    datasets.Dataset.from_list(ROWS + ROWS[:1]).save_to_disk(tmp_path)
    with pytest.raises(ProblemError, match=r"row 2: the same prompt and answer stands at .*row 0 already"):
        load_problems(f"hf:{tmp_path}", **KEYS)  # type: ignore[arg-type]
    assert len(load_problems(f"hf:{tmp_path}?duplicates=drop", **KEYS)) == 2  # type: ignore[arg-type]


@pytest.fixture
def reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skpo.problems.hub.hub_reachable", lambda: True)


@pytest.mark.usefixtures("reachable")
def test_hub_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def fail(path: str, **options: Any) -> NoReturn:
        asked.append((path, options))
        raise ConnectionError("no route to host")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(ProblemError) as error:
        load_problems("hf:openai/gsm8k:test?name=main")
    assert asked == [("openai/gsm8k", {"split": "test", "name": "main"})]
    assert str(error.value) == (
        "hf:openai/gsm8k:test: can't be loaded (ConnectionError: no route to host). Check the name. Without a network, save "
        "the dataset where there is one (`load_dataset(...).save_to_disk(FOLDER)`) and use hf:FOLDER, or use a .parquet file."
    )


def test_without_a_network_only_the_cache_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skpo.problems.hub.hub_reachable", lambda: False)
    with pytest.raises(ProblemError) as error:
        load_problems("hf:openai/no-such-set-in-any-cache")
    assert str(error.value) == (
        "hf:openai/no-such-set-in-any-cache: the hub can't be reached from here, and no copy is in the cache. Without a "
        "network, save the dataset where there is one (`load_dataset(...).save_to_disk(FOLDER)`) and use hf:FOLDER, or use a "
        ".parquet file."
    )

    def cached(path: str, **options: Any) -> datasets.Dataset:
        assert datasets.config.HF_HUB_OFFLINE
        return datasets.Dataset.from_list(ROWS)

    before = datasets.config.HF_HUB_OFFLINE
    monkeypatch.setattr(datasets, "load_dataset", cached)
    assert len(load_problems("hf:owner/in-the-cache", **KEYS)) == 2  # type: ignore[arg-type]
    assert before == datasets.config.HF_HUB_OFFLINE


@pytest.mark.usefixtures("reachable")
def test_missing_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str, **options: Any) -> NoReturn:
        raise ValueError("Config name is missing. Please pick one among the available configs: ['main', 'socratic']")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(ProblemError, match=r"'socratic'\] Choose one with \?name=CONFIG after the source."):
        load_problems("hf:openai/gsm8k")


def test_no_name() -> None:
    with pytest.raises(ProblemError, match=r"hf:: no dataset. Write hf:owner/name or hf:folder."):
        load_problems("hf:")
