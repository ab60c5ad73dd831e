"""What the page unpacks: arrays, codes of one byte, token spellings, and the choice of texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from report.made_runs import EOS, PIECES, ids, row, save_rollouts, save_tokenizer, skip_group
from tokenizers import Tokenizer, decoders, models

from skpo.report.blocks import blocks
from skpo.report.choose import priority, spread, within
from skpo.report.pack import (
    pack,
    planes,
    positive_codes,
    positive_values,
    signed_codes,
    signed_values,
    unpack,
)
from skpo.report.scan import ALL_RIGHT, NONE_RIGHT, SOME_RIGHT, UNSCORED, Groups, Problems, lists, scan
from skpo.report.vocabulary import LocalIds, TokenBytes, byte_letters, find_tokenizer


class TestPack:
    def test_there_and_back(self) -> None:
        arrays = {"a": np.array([1, 2, 3], np.uint8), "b": np.array([0.5, np.nan]), "c": np.array([70000], np.uint32)}
        header, back = unpack(pack({"text": "é\u2028</script>"}, arrays))
        assert header["text"] == "é\u2028</script>"
        for name, values in arrays.items():
            np.testing.assert_array_equal(back[name], values)

    def test_a_lone_surrogate_does_not_stop_it(self) -> None:
        assert unpack(pack({"text": "\ud800"}, {}))[0]["text"] == "?"

    def test_other_types_are_refused(self) -> None:
        with pytest.raises(ValueError, match="int64"):
            pack({}, {"a": np.array([1])})

    def test_codes(self) -> None:
        # round(40 ln(1 + 20 v)): 0 -> 0; 0.5 -> 40 ln 11 = 95.9; 1e9 -> the top; 255 is kept for what is missing
        assert positive_codes(np.array([0.0, 0.5, 1e9, np.inf, np.nan, -1.0])).tolist() == [0, 96, 254, 254, 255, 0]
        values = np.array([0.01, 0.1, 1.0, 5.0, 20.0])
        np.testing.assert_allclose(positive_values(positive_codes(values)), values, rtol=0.09)
        np.testing.assert_allclose(positive_values(positive_codes(values[1:])), values[1:], rtol=0.02)

    def test_signed_codes(self) -> None:
        # 127 + sign round(20 ln(1 + 50 |v|)): 0.1 -> 20 ln 6 = 35.8
        assert signed_codes(np.array([0.0, 0.1, -0.1, np.nan, 1e9])).tolist() == [127, 163, 91, 255, 254]
        values = np.array([-3.0, -0.2, 0.2, 3.0])
        np.testing.assert_allclose(signed_values(signed_codes(values)), values, rtol=0.04)

    def test_planes(self) -> None:
        three = planes(np.array([1 + 2 * 256 + 3 * 65536]), "x")
        assert [int(three[f"x{i}"][0]) for i in range(3)] == [1, 2, 3]


class TestVocabulary:
    def test_whole_words(self, tmp_path: Path) -> None:
        save_tokenizer(tmp_path)
        path = find_tokenizer(tmp_path)
        assert path is not None
        spell = TokenBytes(path)
        assert spell(PIECES.index("+")) == b"+"
        assert spell(EOS) == b"<eos>"
        assert spell.special == {0, EOS}
        assert spell(9999) == b"<9999>"

    def test_byte_letters(self) -> None:
        letters = byte_letters()
        assert len(set(letters)) == 256
        assert letters[ord("a")] == "a"
        assert letters[ord(" ")] == "Ġ"  # as GPT-2's vocabulary spells a space
        assert letters[ord("\n")] == "Ċ"

    def test_byte_level(self, tmp_path: Path) -> None:
        """é is the bytes c3 a9: two tokens, neither of them text by itself."""
        letters = byte_letters()
        pieces = [letters[0xC3], letters[0xA9], "Ġhi"]
        tokenizer = Tokenizer(models.WordLevel({p: i for i, p in enumerate(pieces)}, pieces[0]))
        tokenizer.decoder = decoders.ByteLevel()
        save_tokenizer(tmp_path, tokenizer)
        spell = TokenBytes(find_tokenizer(tmp_path))  # type: ignore[arg-type]
        assert [spell(i) for i in range(3)] == [b"\xc3", b"\xa9", b" hi"]
        local = LocalIds()
        assert local(np.array([2, 0, 1, 2])).tolist() == [2, 0, 1, 2]  # 0, 1, 2 are new, in order of id
        assert local.spell(spell)["text"] == [[0xC3], [0xA9], " hi"]

    def test_sentence_pieces(self, tmp_path: Path) -> None:
        pieces = ["▁the", "<0xE2>", "▁"]
        tokenizer = Tokenizer(models.WordLevel({p: i for i, p in enumerate(pieces)}, pieces[0]))
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        save_tokenizer(tmp_path, tokenizer)
        spell = TokenBytes(find_tokenizer(tmp_path))  # type: ignore[arg-type]
        assert [spell(i) for i in range(3)] == [b" the", b"\xe2", b" "]

    def test_newest_checkpoint(self, tmp_path: Path) -> None:
        assert find_tokenizer(tmp_path) is None
        save_tokenizer(tmp_path, step=2)
        save_tokenizer(tmp_path, step=10)
        assert "step-000010" in str(find_tokenizer(tmp_path))

    def test_damaged(self, tmp_path: Path) -> None:
        (tmp_path / "tokenizer.json").write_text("{}")
        with pytest.raises(ValueError, match=r"tokenizer\.json"):
            TokenBytes(tmp_path / "tokenizer.json")


class TestScan:
    def test_groups(self, tmp_path: Path) -> None:
        rows = [
            *skip_group(1, "a", [True, False, False, False]),
            *[row(1, "b", score=1.0, reward=1.0), row(1, "b", score=None)],
            row(1, "c", score=None),
            row(1, "d", chosen=False, score=1.0),  # not trained on: its verdict does not count
            row(1, "e", score=0.0, reward=-1.0),
        ]
        save_rollouts(tmp_path, 1, rows)
        problems = Problems()
        groups = scan(tmp_path, problems)
        assert problems.ids == ["a", "b", "c", "d", "e"]
        assert problems.answers[0] == "3"
        assert groups.rows.tolist() == [8, 2, 1, 1, 1]
        assert groups.right.tolist() == [1, 1, 0, 0, 0]
        assert groups.scored.tolist() == [4, 1, 0, 0, 1]
        assert groups.outcome.tolist() == [SOME_RIGHT, ALL_RIGHT, UNSCORED, UNSCORED, NONE_RIGHT]
        assert groups.reward[0] == pytest.approx(-0.5)  # (1 - 1 - 1 - 1) / 4
        assert groups.roles.tolist() == [0b11, 1, 1, 1, 1]
        assert groups.tokens[0] == 4 * 7 + 4 * 3 + 2 * len(ids("1+1 1+2="))

    def test_a_damaged_file_is_told(self, tmp_path: Path) -> None:
        save_rollouts(tmp_path, 1, [row(1, "a")])
        (tmp_path / "rollouts" / "step-000002.parquet").write_bytes(b"not parquet")
        groups = scan(tmp_path, Problems())
        assert len(groups) == 1
        assert "step-000002" in groups.unreadable[0]

    def test_null_lists_are_empty(self, tmp_path: Path) -> None:
        import pyarrow as pa

        table = pa.table({"x": pa.array([[1.0, 2.0], None, [3.0]], pa.list_(pa.float32()))})
        values, at = lists(table, "x")
        assert (values.tolist(), at.tolist()) == ([1, 2, 3], [0, 2, 2, 3])


class TestBlocks:
    def made(self, run: Path, texts: bool = True) -> tuple[dict, dict]:
        save_rollouts(run, 1, skip_group(1, "a", [True, False, True, False]))
        groups = scan(run, Problems())
        local = LocalIds() if texts else None
        self.local = local
        (block,) = blocks(groups, np.array([0]), np.array([True]), local)
        assert block.groups == [0]
        return unpack(block.packed)

    def test_rows_and_tokens(self, tmp_path: Path) -> None:
        _, arrays = self.made(tmp_path)
        assert arrays["row_role"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
        assert arrays["row_chosen"].tolist() == [1, 1, 1, 1, 1, 0, 0, 0]
        assert arrays["row_length"].tolist() == [7] * 4 + [3] * 4
        # mean of -log p: (0.01 + 0.5 + 3 + 0.1 + 1 + 0.2 + 0) / 7; the chosen segment's is 0.2
        np.testing.assert_allclose(arrays["row_nll"][[0, 4]], [4.81 / 7, 0.2], rtol=1e-6)
        assert arrays["row_context"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
        assert arrays["context_length"].tolist() == [8, 4]
        assert self.local is not None
        first = [self.local.tokens[i] for i in arrays["token_id0"][:7]]
        assert first == [*ids("1+2=3"), PIECES.index("right"), EOS]
        np.testing.assert_allclose(positive_values(arrays["token_nll"][:3]), [0.01, 0.5, 3.0], atol=0.05)
        assert arrays["token_token_advantage"][:3].tolist() == [127 + 64, 0, 127]  # 1, -2, 0 of a scale of 2
        assert arrays["row_scale"].tolist() == [2.0] * 4 + [0.0] * 4
        assert set(arrays["token_entropy"][28:].tolist()) == {255}  # segments here have no entropies

    def test_without_a_tokenizer(self, tmp_path: Path) -> None:
        header, arrays = self.made(tmp_path, texts=False)
        assert header["texts"][0] == "1+2=3"
        assert "token_id0" not in arrays

    def test_infos_once(self, tmp_path: Path) -> None:
        save_rollouts(tmp_path, 1, [row(1, "a", info='{"x": 1}'), row(1, "a", info='{"x": 1}'), row(1, "a")])
        (block,) = blocks(scan(tmp_path, Problems()), np.array([0]), np.array([True]), LocalIds())
        assert unpack(block.packed)[0]["infos"] == {"distinct": ['{"x": 1}'], "of": [0, 0, -1]}


class TestChoice:
    def groups(self, step: list[int], right: list[int]) -> Groups:
        n = len(step)
        zeros = np.zeros(n, dtype=np.int64)
        return Groups(
            [],
            zeros,
            np.array(step),
            np.arange(n),
            zeros,
            zeros + 2,
            zeros + 10,
            np.array(right),
            zeros + 2,
            zeros * 1.0,
            zeros,
            [],
        )

    def test_spread(self) -> None:
        order = np.argsort(spread(9))
        assert order[:4].tolist() == [8, 0, 4, 2]  # last, first, middle, a quarter
        assert sorted(spread(5).tolist()) == [0, 1, 2, 3, 4]
        assert spread(1).tolist() == [0]

    def test_rounds(self) -> None:
        """Two steps, each with two groups without a right answer and one with: the first round takes one of each kind and step."""
        groups = self.groups([1, 1, 1, 2, 2, 2], [0, 0, 1, 0, 0, 1])
        order = priority(groups)
        assert sorted(order.tolist()) == list(range(6))
        first = order[:4]
        assert sorted(groups.step[first].tolist()) == [1, 1, 2, 2]
        assert sorted(groups.right[first].tolist()) == [0, 0, 1, 1]
        assert groups.step[first][:2].tolist() == [2, 2]  # the last step first
        np.testing.assert_array_equal(order, priority(groups))

    def test_room(self) -> None:
        order, cost = np.array([3, 0, 2, 1]), np.array([5.0, 5.0, 5.0, 5.0])
        assert within(order, cost, 10).tolist() == [0, 3]
        assert within(order, cost, 0).tolist() == [3]  # one at least
        assert within(order[:0], cost, 10).tolist() == []
