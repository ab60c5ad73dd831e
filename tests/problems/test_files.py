"""Problems from JSON Lines and parquet files, and what a user reads when a row can't be used."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from skpo.errors import ProblemError
from skpo.problems import load_problems, problem_id

Write = Callable[..., str]
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]


def refusal(source: str, **options: Any) -> str:
    """The error's text."""
    with pytest.raises(ProblemError) as error:
        load_problems(source, **options)
    return str(error.value)


def test_rows(write_jsonl: Write) -> None:
    source = write_jsonl(
        {"prompt": "1+1?", "answer": "2", "level": 3, "topic": "sums"},
        "",
        {"prompt": CHAT, "answer": "2", "id": "chat", "verifier": "number"},
        {"id": 7, "prompt": "2+2?", "answer": 4, "verifier": None},
    )
    plain, chat, number = load_problems(source)
    assert (plain.prompt, plain.answer, plain.verifier) == ("1+1?", "2", None)
    assert plain.id == problem_id("1+1?", "2")
    assert plain.columns == {"level": 3, "topic": "sums"}
    assert (chat.id, chat.prompt, chat.text, chat.verifier) == ("chat", CHAT, "1+1?", "number")
    assert (number.id, number.answer, number.columns) == ("7", 4, {})


def test_keys_verifier_and_limit(write_jsonl: Write) -> None:
    source = write_jsonl(
        {"question": "1+1?", "solution": "2"},
        {"question": "2+2?", "solution": "4", "verifier": "exact"},
        "not looked at",
    )
    first, second = load_problems(source, prompt_key="question", answer_key="solution", verifier="number", limit=2)
    assert (first.prompt, first.answer, first.verifier) == ("1+1?", "2", "number")
    assert second.verifier == "exact"


def test_missing_answer_names_line_columns_and_a_likely_column(write_jsonl: Write) -> None:
    rows = [{"prompt": f"{i}+1?", "answer": str(i + 1)} for i in range(16)]
    source = write_jsonl(*rows, {"prompt": "1+1?", "solution": "2"})
    expected = 'problems.jsonl:17: no "answer"; columns here: prompt, solution. Use --answer-key solution.'
    assert refusal(source) == expected


@pytest.mark.parametrize("column", ["solution", "target", "ground_truth", "label"])
def test_likely_answers(write_jsonl: Write, column: str) -> None:
    assert refusal(write_jsonl({"prompt": "1+1?", column: "2"})).endswith(f"Use --answer-key {column}.")


@pytest.mark.parametrize("column", ["question", "problem", "messages"])
def test_likely_prompts(write_jsonl: Write, column: str) -> None:
    source = write_jsonl({column: "1+1?", "answer": "2"})
    expected = f'problems.jsonl:1: no "prompt"; columns here: {column}, answer. Use --prompt-key {column}.'
    assert refusal(source) == expected


def test_nothing_likely(write_jsonl: Write) -> None:
    expected = 'problems.jsonl:1: no "answer"; columns here: prompt, x. Name the right one with --answer-key.'
    assert refusal(write_jsonl({"prompt": "1+1?", "x": "2"})) == expected
    assert "columns here: none." in refusal(write_jsonl({}))


def test_nested_answer(write_jsonl: Write) -> None:
    # The form of dapo-math-17k, made for verl.
    row = {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": "1+1?"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": "2", "style": "rule"},
    }
    source = write_jsonl(row)
    assert refusal(source) == (
        'problems.jsonl:1: no "answer"; columns here: data_source, prompt, ability, reward_model. '
        "Use --answer-key reward_model.ground_truth."
    )
    (problem,) = load_problems(source, answer_key="reward_model.ground_truth")
    assert (problem.text, problem.answer) == ("1+1?", "2")
    assert set(problem.columns) == {"data_source", "ability", "reward_model"}


def test_a_column_with_a_dot_in_its_name_comes_first(write_jsonl: Write) -> None:
    source = write_jsonl({"prompt": "1+1?", "a.b": "2", "a": {"b": "3"}})
    assert load_problems(source, answer_key="a.b")[0].answer == "2"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "problems.jsonl:2: invalid JSON (Expecting property name enclosed in double quotes, column"),
        ("[1]", "problems.jsonl:2: a row is an object with columns, this is a list."),
        ('"text"', "problems.jsonl:2: a row is an object with columns, this is text."),
        ({"prompt": 3, "answer": "2"}, '"prompt" is a number. A prompt is text or a list of chat messages.'),
        ({"prompt": None, "answer": "2"}, '"prompt" is null.'),
        ({"prompt": [], "answer": "2"}, '"prompt" is empty.'),
        ({"prompt": " ", "answer": "2"}, '"prompt" is empty.'),
        ({"prompt": ["1+1?"], "answer": "2"}, 'message 0 of "prompt" has no text "role" and "content".'),
        ({"prompt": [{"role": "user", "content": []}], "answer": "2"}, 'message 0 of "prompt" has no text'),
        (
            {"prompt": [*CHAT, {"role": "assistant", "content": "2"}], "answer": "2"},
            'the last message of "prompt" is from "assistant", not from "user".',
        ),
        ({"prompt": "q", "answer": None}, '"answer" is null. Every row needs a gold answer.'),
        ({"prompt": "q", "answer": ""}, '"answer" is empty.'),
        ('{"prompt": "q", "answer": NaN}', '"answer" is NaN.'),
        ({"prompt": "q", "answer": "2", "id": 1.5}, '"id" is a number. An id is text or a whole number.'),
        ({"prompt": "q", "answer": "2", "verifier": 3}, '"verifier" is a number. Write the name of a verifier.'),
    ],
)
def test_bad_rows(write_jsonl: Write, row: Any, message: str) -> None:
    text = refusal(write_jsonl({"prompt": "1+1?", "answer": "2"}, row))
    assert text.startswith("problems.jsonl:2: ")
    assert message in text


def test_duplicates(write_jsonl: Write) -> None:
    source = write_jsonl({"prompt": "a", "answer": "1", "id": "x"}, {"prompt": "b", "answer": "2", "id": "x"})
    assert refusal(source).startswith('problems.jsonl:2: the id "x" stands at problems.jsonl:1 already.')
    source = write_jsonl(*[{"prompt": "a", "answer": "1"}] * 2, {"prompt": "a", "answer": "2"})
    assert refusal(source).startswith(
        "problems.jsonl:2: the same prompt and answer stands at problems.jsonl:1 already. Remove one, or put ?duplicates=drop"
    )
    assert [p.answer for p in load_problems(f"{source}?duplicates=drop")] == ["1", "2"]
    assert 'Did you mean "duplicates"?' in refusal(f"{source}?duplicate=drop")
    assert "unknown value of duplicates" in refusal(f"{source}?duplicates=keep")


def test_files_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal("no.jsonl") == f"no.jsonl: no such file (looked in {tmp_path})."
    assert refusal("no.parquet").startswith("no.parquet: no such file")
    Path("empty.jsonl").write_text("\n\n")
    assert refusal("empty.jsonl") == "empty.jsonl: no problems in this file."
    Path("latin.jsonl").write_bytes('{"prompt": "é"}'.encode("latin-1"))
    assert refusal("latin.jsonl").startswith("latin.jsonl:1: no UTF-8 text")
    Path("bad.parquet").write_bytes(b"nothing of the kind")
    assert refusal("bad.parquet").startswith("bad.parquet: no readable parquet file")
    Path("folder.jsonl").mkdir()
    assert refusal("folder.jsonl").startswith("folder.jsonl: can't be read")
    assert refusal("problems.csv").startswith('"problems.csv" is no problem source. Use problems.jsonl,')
    assert refusal("no.jsonl", limit=0) == "no.jsonl: limit=0. Use 1 or more, or None for all problems."


def test_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "1+1?", "answer": "2"}\n')
    assert load_problems(str(path))[0].prompt == "1+1?"


def test_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows: list[dict[str, Any]] = [
        {"prompt": CHAT, "answer": "2", "reward_model": {"ground_truth": "2"}, "level": 1.0},
        {"prompt": [{"role": "user", "content": "2+2?"}], "answer": "4", "reward_model": {"ground_truth": "4"}},
    ]
    pq.write_table(pa.Table.from_pylist(rows), "p.parquet")
    one, two = load_problems("p.parquet")
    assert one.prompt == CHAT
    assert one.columns == {"reward_model": {"ground_truth": "2"}, "level": 1.0}
    assert (two.text, two.answer) == ("2+2?", "4")
    assert [p.answer for p in load_problems("p.parquet", answer_key="reward_model.ground_truth")] == ["2", "4"]
    expected = (
        'p.parquet, row 0: no "gold"; columns here: prompt, answer, reward_model, level. Use --answer-key answer.'
    )
    assert refusal("p.parquet", answer_key="gold") == expected


def test_parquet_refuses_missing_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"prompt": ["a", "b"], "answer": [1.0, float("nan")]}), "p.parquet")
    assert refusal("p.parquet") == 'p.parquet, row 1: "answer" is NaN. Every row needs a gold answer.'
    pq.write_table(pa.table({"prompt": ["a", "b"], "answer": [None, 1.0]}), "p.parquet")
    assert refusal("p.parquet") == 'p.parquet, row 0: "answer" is null. Every row needs a gold answer.'
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), "p.parquet")
    assert refusal("p.parquet") == "p.parquet: no problems in this file."


def test_gold_answers_are_checked(write_jsonl: Write) -> None:
    source = write_jsonl({"prompt": "a", "answer": "3"}, {"prompt": "b", "answer": "no number here"})
    assert refusal(source, verifier="number").startswith("problems.jsonl:2: ")
    assert len(load_problems(source, verifier="number", check=False)) == 2
    assert len(load_problems(source)) == 2  # no verifier known, so none to ask
    assert re.match(r'problems.jsonl:1: .*"nmber"', refusal(source, verifier="nmber"))
