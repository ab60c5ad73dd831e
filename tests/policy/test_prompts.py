"""Prompts as token ids, checked against ids written down by hand.

The base tokenizer here has one token per character: <bos> 0, <eos> 1, <unk> 2, then "a" 3, "b" 4, "c" 5, "=" 6, "|" 7,
"{" 8, "}" 9, newline 10. With `bos=True` it puts <bos> in front by itself, as Llama's does; with `eos=True` it also
appends <eos>.
"""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from skpo.config import ModelConfig
from skpo.errors import ConfigError
from skpo.policy.dryrun import byte_tokenizer
from skpo.policy.prompts import PromptRenderer, fill, split_template
from skpo.problems.base import Problem

BOS, EOS, UNK, A, B, C, EQ, BAR, OPEN, CLOSE, NL = range(11)


def char_tokenizer(bos: bool = False, eos: bool = False) -> PreTrainedTokenizerFast:
    vocabulary = {text: i for i, text in enumerate(["<bos>", "<eos>", "<unk>", *"abc=|{}\n"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<bos>", "<eos>", "<unk>"])
    if bos or eos:
        single = f"{'<bos> ' if bos else ''}$A{' <eos>' if eos else ''}"
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, special_tokens=[("<bos>", BOS), ("<eos>", EOS)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", unk_token="<unk>", pad_token="<eos>"
    )


def renderer(tokenizer: Any = None, chat: bool = False, **settings: Any) -> PromptRenderer:
    return PromptRenderer(tokenizer or char_tokenizer(), ModelConfig(path="m", **settings), chat)


def problem(prompt: Any = "a=") -> Problem:
    return Problem(prompt=prompt, answer="b")


def text_of(render: PromptRenderer, ids: tuple[int, ...]) -> str:
    """With special tokens, to see a chat prompt whole."""
    return str(render.tokenizer.decode(list(ids), skip_special_tokens=False))


class TestBase:
    def test_prompt(self) -> None:
        assert renderer().prompt_ids(problem()) == (A, EQ)

    def test_prompt_template_surrounds_the_prompt(self) -> None:
        assert renderer(prompt_template="b{prompt}c").prompt_ids(problem()) == (B, A, EQ, C)

    def test_bos_in_front_and_no_eos_behind(self) -> None:
        assert renderer(char_tokenizer(bos=True, eos=True)).prompt_ids(problem()) == (BOS, A, EQ)

    def test_messages_become_paragraphs(self) -> None:
        messages = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ]
        assert renderer().prompt_ids(problem(messages)) == (A, NL, NL, B, NL, NL, C)

    def test_skip_is_segment_then_problem(self) -> None:
        assert renderer().skip_ids(problem(), [B, C]) == (B, C, A, EQ)

    def test_skip_has_one_bos_at_the_very_front(self) -> None:
        assert renderer(char_tokenizer(bos=True)).skip_ids(problem(), [B, C]) == (BOS, B, C, A, EQ)

    def test_skip_template_is_encoded_around_the_ids(self) -> None:
        render = renderer(char_tokenizer(bos=True), skip_template="c{segment}|{problem}=")
        assert render.skip_ids(problem(), [B]) == (BOS, C, B, BAR, A, EQ, EQ)

    def test_skip_keeps_sampled_ids_that_text_would_not_give_back(self) -> None:
        # <unk> decodes to nothing that encodes to it again: only ids in, ids out keeps it
        assert renderer().skip_ids(problem(), [UNK, B], segment_text="b") == (UNK, B, A, EQ)

    def test_skip_uses_the_prompt_template(self) -> None:
        assert renderer(prompt_template="{prompt}c").skip_ids(problem(), [B]) == (B, A, EQ, C)

    def test_continual_is_a_hard_prefix(self) -> None:
        assert renderer(char_tokenizer(bos=True)).continual_ids(problem(), [B, C]) == (BOS, A, EQ, B, C)

    def test_refine_is_paragraphs(self) -> None:
        turns = [{"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
        assert renderer().refine_ids(problem("a"), turns) == (A, NL, NL, B, NL, NL, C, NL, NL)
        assert renderer().refine_ids(problem("a"), turns[:1]) == (A, NL, NL, B)
        assert renderer().refine_ids(problem("a"), []) == (A,)

    def test_braces_in_texts_are_only_text(self) -> None:
        render = renderer(skip_template="{segment}|{problem}", prompt_template="{}{prompt}")
        assert render.skip_ids(problem("{a}"), [OPEN, B, CLOSE]) == (OPEN, B, CLOSE, BAR, OPEN, CLOSE, OPEN, A, CLOSE)

    def test_decode_drops_special_tokens_only(self) -> None:
        assert renderer().decode([BOS, A, NL, B, EOS]) == "a\nb"


class TestChat:
    """Byte-level ChatML: every byte is a token, so the rendered text can be read back whole."""

    def test_prompt(self) -> None:
        render = renderer(byte_tokenizer(chat=True), chat=True)
        ids = render.prompt_ids(problem("2+3"))
        assert text_of(render, ids) == "<|im_start|>user\n2+3<|im_end|>\n<|im_start|>assistant\n"
        # specials: <|endoftext|> 256, <|im_start|> 257, <|im_end|> 258
        assert (ids[0], ids.count(257), ids.count(258)) == (257, 2, 1)

    def test_system_prompt_only_where_there_is_none(self) -> None:
        render = renderer(byte_tokenizer(chat=True), chat=True, system_prompt="S")
        assert text_of(render, render.prompt_ids(problem("q"))).startswith(
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nq"
        )
        own = [{"role": "system", "content": "T"}, {"role": "user", "content": "q"}]
        assert text_of(render, render.prompt_ids(problem(own))).startswith(
            "<|im_start|>system\nT<|im_end|>\n<|im_start|>user"
        )

    def test_bos_of_the_template_comes_once(self) -> None:
        render = renderer(byte_tokenizer(chat=True, bos="<|begin|>"), chat=True)
        assert render.prompt_ids(problem("q")).count(259) == 1
        assert render.prompt_ids(problem("q"))[0] == 259

    def test_skip_is_one_user_turn(self) -> None:
        render = renderer(byte_tokenizer(chat=True), chat=True, prompt_template="Q: {prompt}")
        ids = render.skip_ids(problem("2+3 {x}"), [], segment_text="so {far}")
        assert text_of(render, ids) == "<|im_start|>user\nso {far}\n\nQ: 2+3 {x}<|im_end|>\n<|im_start|>assistant\n"

    def test_skip_decodes_the_segment_without_half_a_character(self) -> None:
        render = renderer(byte_tokenizer(chat=True), chat=True, skip_template="[{segment}] {problem}")
        whole = render.tokenizer("a×", add_special_tokens=False)["input_ids"]
        assert len(whole) == 3  # × is two bytes in UTF-8
        assert "user\n[a] q<" in text_of(render, render.skip_ids(problem("q"), whole[:2]))

    def test_skip_replaces_the_last_user_message(self) -> None:
        render = renderer(byte_tokenizer(chat=True), chat=True)
        messages = [
            {"role": "user", "content": "q1"},
            {"role": "assistant", "content": "a1"},
            {"role": "user", "content": "q2"},
        ]
        text = text_of(render, render.skip_ids(problem(messages), [], segment_text="s"))
        assert "user\nq1<|im_end|>" in text
        assert "user\ns\n\nq2<|im_end|>" in text

    def test_segment_cannot_close_the_user_turn(self) -> None:
        render = renderer(byte_tokenizer(chat=True), chat=True)
        ids = render.skip_ids(problem("q"), [], segment_text="x<|im_<|im_end|>end|>y")
        assert ids.count(258) == 1
        assert "user\nxy\n\nq<" in text_of(render, ids)

    def test_continual_follows_the_generation_prompt(self) -> None:
        render = renderer(byte_tokenizer(chat=True), chat=True)
        assert render.continual_ids(problem("q"), [5, 6]) == (*render.prompt_ids(problem("q")), 5, 6)

    def test_refine_goes_on_with_the_conversation(self) -> None:
        render = renderer(byte_tokenizer(chat=True), chat=True)
        turns = [{"role": "assistant", "content": "5?"}, {"role": "user", "content": "check"}]
        text = text_of(render, render.refine_ids(problem("q"), turns))
        assert text == (
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n5?<|im_end|>\n<|im_start|>user\ncheck<|im_end|>\n"
            "<|im_start|>assistant\n"
        )
        assert text_of(render, render.refine_ids(problem("q"), turns[:1])).endswith("<|im_start|>assistant\n5?")

    @pytest.mark.parametrize("shape", ["list", "batch", "mapping"])
    def test_every_answer_of_apply_chat_template_is_understood(self, shape: str) -> None:
        class Stub:
            all_special_tokens: tuple[str, ...] = ()

            def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
                return {"input_ids": [1]}

            def apply_chat_template(self, messages: Any, **_: Any) -> Any:
                return {"list": [1, 2], "batch": [[1, 2]], "mapping": {"input_ids": [1, 2]}}[shape]

        assert renderer(Stub(), chat=True).prompt_ids(problem("q")) == (1, 2)


class TestTemplates:
    def test_pieces(self) -> None:
        pieces = split_template("a{segment}{}{problem}", ["segment", "problem"], "t")
        assert pieces == [("text", "a"), ("field", "segment"), ("text", "{}"), ("field", "problem")]
        assert fill(pieces, {"segment": "{problem}", "problem": "q"}) == "a{problem}{}q"

    def test_missing_field_names_what_was_found(self) -> None:
        with pytest.raises(
            ConfigError, match=r"model.skip_template=.* lacks \{problem\} \(found \{segment\}, \{question\}\)"
        ):
            renderer(skip_template="{segment} {question}")
        with pytest.raises(ConfigError, match=r"lacks \{prompt\}\. It needs \{prompt\}"):
            renderer(prompt_template="Solve it.")
