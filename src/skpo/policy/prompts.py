"""From problems to token ids: plain prompts, skip connections `[s, q]`, hard prefixes `q + s`, multi-turn refinement.

SKPO, arXiv 2604.08690, section 3.1: the downstream phase samples from the segment followed by the problem again, rendered
*as a prompt*. A chat model reads both inside one user turn; a base model reads the concatenated token ids. What was
sampled is never tokenised again where it counts as sampled text: `skip_ids` of a base model and `continual_ids` carry
the segment's own ids. Only a chat model's skip prompt holds the segment as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from skpo.config import ModelConfig
from skpo.errors import ConfigError
from skpo.problems.base import Message, Problem

DEFAULT_SKIP_TEMPLATE = "{segment}\n\n{problem}"
SEPARATOR = "\n\n"  #: between the turns of a conversation that a base model reads as plain text


def split_template(template: str, fields: Sequence[str], setting: str) -> list[tuple[str, str]]:
    """Cut a template into ("text", literal) and ("field", name) pieces, in order; every field must occur at least once.

    Only the named placeholders are special: any other brace is literal, so `\\boxed{}` needs no escaping.
    Raises ConfigError, with the placeholders that were found, where one is missing.
    """
    missing = [name for name in fields if f"{{{name}}}" not in template]
    if missing:
        found = re.findall(r"\{\w+\}", template)
        wanted = " and ".join(f"{{{name}}}" for name in fields)
        raise ConfigError(
            f"{setting}={template!r} lacks {', '.join(f'{{{name}}}' for name in missing)}"
            f"{' (found ' + ', '.join(found) + ')' if found else ''}. It needs {wanted}."
        )
    pattern = "(" + "|".join(re.escape(f"{{{name}}}") for name in fields) + ")"
    pieces = [piece for piece in re.split(pattern, template) if piece]
    return [("field", p[1:-1]) if re.fullmatch(pattern, p) else ("text", p) for p in pieces]


def fill(pieces: Sequence[tuple[str, str]], values: Mapping[str, str]) -> str:
    """Put values in the places of their fields; braces inside the values are left alone."""
    return "".join(values[text] if kind == "field" else text for kind, text in pieces)


class PromptRenderer:
    """Renders problems for one tokenizer.

    tokenizer: a transformers tokenizer.
    config:    `prompt_template`, `skip_template` and `system_prompt` are read; see ModelConfig.
    chat:      render through the tokenizer's chat template (`LoadedPolicy.chat`).

    All ids are tuples of Python ints, ready to be a `Request.context`. Raises ConfigError on a template without its fields.
    """

    travels_as = "renderer"  #: a rollout worker has its own in this one's place

    def __init__(self, tokenizer: Any, config: ModelConfig, chat: bool) -> None:
        self.tokenizer = tokenizer
        self.chat = chat
        self.system_prompt = config.system_prompt
        self._prompt = split_template(config.prompt_template, ["prompt"], "model.prompt_template")
        self._skip: list[tuple[str, str]] | None = None
        if config.skip_template is not None:
            self._skip = split_template(config.skip_template, ["segment", "problem"], "model.skip_template")
        self._chat_skip = self._skip or split_template(DEFAULT_SKIP_TEMPLATE, ["segment", "problem"], "skip_template")
        self._special_texts = sorted(set(getattr(tokenizer, "all_special_tokens", [])), key=len, reverse=True)
        self._token_texts: dict[int, str] = {}
        self.front = _front_ids(tokenizer)  #: ids the tokenizer puts before a text (a BOS), or ()

    def prompt_ids(self, problem: Problem) -> tuple[int, ...]:
        """Ids of the problem alone, `q`."""
        if self.chat:
            return self._chat_ids(self._messages(problem))
        return self.front + self._encode(self._plain(problem))

    def skip_ids(
        self, problem: Problem, segment_ids: Sequence[int], segment_text: str | None = None
    ) -> tuple[int, ...]:
        """Ids of the skip connection `[s, q]`.

        segment_ids:  the segment as sampled, without an end-of-sequence token.
        segment_text: its text, if at hand (chat models; decoded from the ids otherwise).

        Chat: one user turn that holds the segment's text and the problem. Base: `s + q` as ids, the segment's own ids
        unchanged and the BOS, if the tokenizer adds one, once at the very front.
        """
        if self.chat:
            text = self._segment_text(segment_ids, segment_text)
            content = fill(self._chat_skip, {"segment": text, "problem": self._question(problem)})
            return self._chat_ids(_with_last_user(self._messages(problem), content))
        segment, question = tuple(int(i) for i in segment_ids), self._encode(self._plain(problem))
        ids = self.front
        for kind, text in self._skip or [("field", "segment"), ("field", "problem")]:
            if kind == "text":
                ids += self._encode(text)
            else:
                ids += segment if text == "segment" else question
        return ids

    def continual_ids(self, problem: Problem, segment_ids: Sequence[int]) -> tuple[int, ...]:
        """Ids of `q + s`: the segment as a hard prefix of the response (the paper's "w/o Skip", Table 2)."""
        return self.prompt_ids(problem) + tuple(int(i) for i in segment_ids)

    def refine_ids(self, problem: Problem, turns: Sequence[Message]) -> tuple[int, ...]:
        """Ids of a conversation: the problem, then `turns` (critique and refinement stages).

        turns: messages after the problem's own, say the first answer (assistant) and a critique of it (user). If the last
        one is from the assistant, the model continues that message; otherwise it begins a new one.
        A base model reads all contents as plain text with blank lines between them.
        """
        if not turns:
            return self.prompt_ids(problem)
        resume = turns[-1]["role"] == "assistant"
        if self.chat:
            return self._chat_ids([*self._messages(problem), *turns], resume=resume)
        text = SEPARATOR.join([self._plain(problem), *(turn["content"] for turn in turns)])
        return self.front + self._encode(text if resume else text + SEPARATOR)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of sampled ids, without special tokens and exactly as tokenised (no clean-up of spaces)."""
        ids = [int(i) for i in ids]
        return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a text that continues another one: no special token around it."""
        return self._encode(text)

    def token_text(self, token: int) -> str:
        """Text of one token where it follows another one (a token that begins a text may lose its leading space)."""
        if token not in self._token_texts:
            before = self._encode("0")
            self._token_texts[token] = self.decode([*before, token])[len(self.decode(before)) :]
        return self._token_texts[token]

    def _segment_text(self, ids: Sequence[int], text: str | None) -> str:
        """The segment's text, without a character that was cut in half and without text that reads as a special token.

        The second matters because the prompt is tokenised again: a model that *spells* `<|im_end|>` could otherwise end
        the user turn.
        """
        text = (self.decode(ids) if text is None else text).rstrip("\ufffd")
        while any(special in text for special in self._special_texts):
            for special in self._special_texts:
                text = text.replace(special, "")
        return text

    def _question(self, problem: Problem) -> str:
        """The problem's text as its own prompt shows it: through `prompt_template` for plain text, as it is for messages."""
        if isinstance(problem.prompt, str):
            return fill(self._prompt, {"prompt": problem.prompt})
        return problem.text

    def _messages(self, problem: Problem) -> list[dict[str, str]]:
        """The problem as chat messages, with the system prompt in front unless it brings its own."""
        if isinstance(problem.prompt, str):
            messages = [{"role": "user", "content": self._question(problem)}]
        else:
            messages = [dict(message) for message in problem.prompt]
        if self.system_prompt is not None and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": self.system_prompt})
        return messages

    def _plain(self, problem: Problem) -> str:
        """The problem as plain text, for a base model: chat messages become paragraphs."""
        if isinstance(problem.prompt, str):
            return self._question(problem)
        return SEPARATOR.join(message["content"] for message in problem.prompt)

    def _chat_ids(self, messages: Sequence[Message], resume: bool = False) -> tuple[int, ...]:
        """Ids of messages through the chat template; transformers 5 answers with a mapping, older ones with a list."""
        out = self.tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tokenize=True,
            add_generation_prompt=not resume,
            continue_final_message=resume,
        )
        ids = out["input_ids"] if isinstance(out, Mapping) else out
        if len(ids) and isinstance(ids[0], Sequence):  # a batch of one
            ids = ids[0]
        return tuple(int(i) for i in ids)

    def _encode(self, text: str) -> tuple[int, ...]:
        """Ids of a text without any special token around it."""
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"]) if text else ()


def _front_ids(tokenizer: Any) -> tuple[int, ...]:
    """Ids that the tokenizer puts in front of a text by itself; what it puts behind (an EOS) does not belong in a prompt."""
    probe = "0"
    bare = list(tokenizer(probe, add_special_tokens=False)["input_ids"])
    dressed = list(tokenizer(probe, add_special_tokens=True)["input_ids"])
    for start in range(len(dressed) - len(bare) + 1):
        if dressed[start : start + len(bare)] == bare:
            return tuple(dressed[:start])
    return ()


def _with_last_user(messages: Sequence[dict[str, str]], content: str) -> list[dict[str, str]]:
    """The messages with another content in the last user turn."""
    last = max(i for i, message in enumerate(messages) if message["role"] == "user")
    return [{**message, "content": content} if i == last else message for i, message in enumerate(messages)]
