"""A tokenizer with one token a character, which loads in transformers and in vLLM.

Called by the warm-up of the starting model. Never downloads anything.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD = "<pad>"
EOS = "<eos>"
UNKNOWN = "<unk>"
CLOSED = 32
"""A sample of texts with more different characters than this is prose: see alphabet."""

CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""The contents one after another: the model knows no roles."""


def alphabet(texts: Iterable[str]) -> str:
    """The characters that a tokenizer for these texts needs, sorted.

    Texts of few characters are taken as a closed task. Others are a sample of an open
    one, so all of printable ASCII comes on top.
    """
    found = set().union(*texts)
    if len(found) > CLOSED:
        found |= set(string.printable)
    return "".join(sorted(found))


def build_tokenizer(characters: str) -> PreTrainedTokenizerFast:
    """A tokenizer for these characters; ids 0, 1, 2 are pad, eos and unknown.

    Pad is not eos, so that an end of response is never mistaken for padding. There is
    no beginning-of-text token, and encoding adds no token of its own.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate((PAD, EOS, UNKNOWN, *characters))}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
