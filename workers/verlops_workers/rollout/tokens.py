"""From a prompt to token ids, once, and from response ids to text for the reward.

The ids given to the engine are the ids in the sample; text is only for rewards.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from verlops.errors import CorruptError
from verlops.messages import Prompt, unpack_ids


class Tokens(Protocol):
    """What the worker needs of a tokenizer."""

    def encode(self, prompt: Prompt) -> list[int]:
        """The prompt's ids. Raises CorruptError when it has no content."""
        ...

    def decode(self, ids: Sequence[int]) -> str: ...


class ByteTokens:
    """UTF-8 bytes as ids: for engines without a model."""

    def encode(self, prompt: Prompt) -> list[int]:
        if prompt.token_ids is not None:
            return unpack_ids(prompt.token_ids)
        return list(prompt_text(prompt).encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i % 256 for i in ids).decode(errors="replace")


class HfTokens:
    """A transformers tokenizer from the model's folder."""

    def __init__(self, path: str | Path, *, trust_remote_code: bool = False) -> None:
        from transformers import AutoTokenizer

        self._tokenizer: Any = AutoTokenizer.from_pretrained(
            str(path), trust_remote_code=trust_remote_code
        )

    def encode(self, prompt: Prompt) -> list[int]:
        if prompt.token_ids is not None:
            return unpack_ids(prompt.token_ids)
        if prompt.messages is not None:
            # The template writes the special tokens itself: text and a second encoding
            # would put a second BOS before it.
            found = self._tokenizer.apply_chat_template(
                prompt.messages, tokenize=True, add_generation_prompt=True, return_dict=True
            )
            return list(found["input_ids"])
        return list(self._tokenizer(prompt_text(prompt))["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))


def prompt_text(prompt: Prompt) -> str:
    """A prompt as text, for people and scorers. Raises CorruptError when it has none."""
    if prompt.text is not None:
        return prompt.text
    if prompt.messages is not None:
        return "\n".join(message.get("content", "") for message in prompt.messages)
    raise CorruptError("a prompt with neither token ids, text nor messages")
