"""Special tokens: their roles, which of them end a generation, and splitting text at them.

GGUF specifies some special tokens by id; the others are recognised by their text. Both lists below
are those of llama.cpp (src/llama-vocab.cpp), so that generations end at the same tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from plait.tokenizer.vocabulary import SPACE, TokenType, Vocabulary

# Maps roles to texts, most specific first. Roles that the file specifies by id are not looked up.
_ROLE_TEXTS: Final = {
    "eot": (
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>",
        "[EOT]", f"<\uff5cend{SPACE}of{SPACE}sentence\uff5c>", "<end_of_utterance>",
    ),
    "eom": ("<|eom_id|>",),
    "fim_pre": (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", f"<\uff5cfim{SPACE}begin\uff5c>", "<PRE>", SPACE + "<PRE>",
        "<|code_prefix|>", "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", f"<\uff5cfim{SPACE}hole\uff5c>", "<SUF>", SPACE + "<SUF>",
        "<|code_suffix|>", "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", f"<\uff5cfim{SPACE}end\uff5c>", "<MID>", SPACE + "<MID>",
        "<|code_middle|>", "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}  # fmt: skip

_END_TEXTS: Final = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
    "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", f"<\uff5cend{SPACE}of{SPACE}sentence\uff5c>", "[e~[",
)  # fmt: skip
_END_ROLES: Final = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")

# gpt-oss marks the parts of a message with these tokens, so decoded text must contain them.
_ALWAYS_SHOWN: Final = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")

# The white space of isspace() in the C locale, which tokens with lstrip and rstrip remove.
_WHITESPACE: Final = " \t\n\v\f\r"

_SPECIAL: Final = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)


def resolve(vocabulary: Vocabulary) -> frozenset[int]:
    """Complete `vocabulary.ids` and `vocabulary.types` from the texts above and return the end-of-generation ids."""
    to_id, types, ids = vocabulary.to_id, vocabulary.types, vocabulary.ids
    for role, texts in _ROLE_TEXTS.items():
        found = next((to_id[text] for text in texts if text in to_id), None)
        if role not in ids and found is not None:
            ids[role] = found
            types[found] = TokenType.CONTROL
    ends = {to_id[text] for text in _END_TEXTS if text in to_id}
    if vocabulary.kind == "plamo2":  # an HTML tag
        ends.discard(to_id.get("</s>", -1))
    for token in ends:
        types[token] = TokenType.CONTROL
    for text in _ALWAYS_SHOWN:
        if text in to_id:
            types[to_id[text]] = TokenType.USER_DEFINED
    ends.update(ids[role] for role in _END_ROLES if role in ids)
    _apply_exceptions(vocabulary, ends)
    return frozenset(ends)


def _apply_exceptions(vocabulary: Vocabulary, ends: set[int]) -> None:
    """Handle vocabularies in which a token that usually ends a generation does not."""
    texts = {vocabulary.tokens[token]: token for token in ends}
    harmony = {"<|return|>", "<|call|>"} <= texts.keys() or {
        "<|return|>",
        "<|calls|>",
    } <= texts.keys()
    solar = "<|flush|>" in texts and ("<|call|>" in texts or "<|calls|>" in texts)
    if (harmony or solar) and "<|end|>" in texts:  # there it ends a message, but not the answer
        ends.discard(texts["<|end|>"])
        vocabulary.types[texts["<|end|>"]] = TokenType.USER_DEFINED
    if "<|tool_response>" in texts and "</s>" in texts:  # Gemma 4: an HTML tag
        ends.discard(texts["</s>"])
        vocabulary.types[texts["</s>"]] = TokenType.NORMAL


class Partition:
    """Splits text at special tokens; splits at longer tokens first, and at each token from left to right."""

    def __init__(self, vocabulary: Vocabulary, stored: Sequence[TokenType]) -> None:
        """Prepare the search.

        Args:
            vocabulary: The vocabulary with the types that resolve() completed.
            stored: The types in the file.
        """
        tokens, types = vocabulary.tokens, vocabulary.types
        special = [token for token, kind in enumerate(types) if kind in _SPECIAL]
        special.sort(key=lambda token: -len(tokens[token].encode("utf-8", "surrogateescape")))
        self._all = [(tokens[token], token) for token in special]
        user = [token for token in special if types[token] is TokenType.USER_DEFINED]
        # Without parse_special, control tokens are ordinary text, also those that resolve() made
        # user-defined so that decoded text contains them. Other user-defined tokens are recognised.
        self._user = [
            (tokens[token], token) for token in user if stored[token] is not TokenType.CONTROL
        ]
        self._user_texts = frozenset(tokens[token] for token in user)
        self._control_texts = frozenset(text for text, _ in self._all) - self._user_texts
        self._left, self._right = _stripping(vocabulary, special)

    def __call__(self, text: str, parse_special: bool) -> list[str | int]:
        """Return the pieces of `text`: non-empty strings, and token ids."""
        pieces: list[str | int] = [text] if text else []
        for token_text, token in self._all if parse_special else self._user:
            if token_text in text:
                pieces = list(self._cut(pieces, token_text, token))
        return pieces

    def texts(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return the texts of control and unknown tokens, and those of user-defined tokens."""
        return self._control_texts, self._user_texts

    def _cut(self, pieces: Iterable[str | int], token_text: str, token: int) -> Iterable[str | int]:
        for piece in pieces:
            if isinstance(piece, int) or token_text not in piece:
                yield piece
                continue
            parts = piece.split(token_text)
            for index, part in enumerate(parts):
                if index > 0:
                    yield token
                    part = part.lstrip(_WHITESPACE) if token in self._right else part
                if index < len(parts) - 1 and token in self._left:
                    part = part.rstrip(_WHITESPACE)
                if part:
                    yield part


def _stripping(vocabulary: Vocabulary, special: list[int]) -> tuple[set[int], set[int]]:
    """Return the tokens that remove white space to their left, and those that remove it to their right.

    GGUF does not store these attributes; they are known for a few model families.
    """
    to_id = vocabulary.to_id
    jina = any(name in vocabulary.pre_name for name in ("jina-v2-de", "jina-v2-es", "jina-v2-code"))
    if jina or any(name in vocabulary.architecture for name in ("nomic-bert-moe", "jina-bert-v3")):
        return {to_id[text] for text in ("<mask>",) if text in to_id}, set()
    if "phi-3" in vocabulary.model_name or "phi3" in vocabulary.model_name:
        kept = {to_id.get(text) for text in ("<unk>", "<s>", "<|endoftext|>")}
        return set(), {token for token in special if token not in kept}
    if "modern-bert" in vocabulary.model_name:
        return {to_id[text] for text in ("[MASK]",) if text in to_id}, set()
    return set(), set()
