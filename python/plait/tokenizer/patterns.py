"""Pre-tokenizers of BPE vocabularies: how text is split into words before merging.

`tokenizer.ggml.pre` names one of these. The expressions (Oniguruma syntax) are applied in order, each to the pieces
that the previous one returned; text between matches is a piece too. They split text as llama.cpp does, whose converter
writes the key, even where that differs from the model's own tokenizer: see
docs/decisions/0050-pre-tokenizers-split-as-llama-cpp.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final


class Digits(Enum):
    """How numbers are split before the expressions are applied."""

    WHOLE = "not at all"
    ASCII = "runs of ASCII digits, in groups of three from the end"
    ATTACHED = (
        r"runs of \p{N}, in groups of three from the end; the first group keeps the text before it"
    )


@dataclass(frozen=True)
class PreTokenizer:
    """Regular expressions and other properties of a pre-tokenizer."""

    patterns: tuple[str, ...]
    # A word that is a token is used as a whole, without merging.
    ignore_merges: bool = False
    # The default of tokenizer.ggml.add_bos_token.
    add_bos: bool = False
    # Overrides tokenizer.ggml.add_bos_token: https://github.com/ggml-org/llama.cpp/pull/21500
    always_bos: bool = False
    # decode() removes spaces before punctuation, as the model's original tokenizer does.
    clean_up_spaces: bool = True
    digits: Digits = Digits.WHOLE
    # Tokens use GPT-2's byte alphabet; otherwise UTF-8 with byte tokens such as <0xE2>.
    byte_level: bool = True
    # Spaces are stored as U+2581.
    escape_whitespaces: bool = False
    # A run of newlines that is a token becomes that token, regardless of merges.
    newline_runs: bool = False
    # White space separates words and is dropped; tokenizer.ggml.normalizer.lowercase applies.
    words_only: bool = False


_CONTRACTION = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_ENDS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_ASCII_WORD = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""

# Radford et al. 2019, https://github.com/openai/gpt-2/blob/master/src/encoder.py
_GPT2_EXPRESSION = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _cl100k(
    letters: str, digits: str, others: str = r" ?[^\s\p{L}\p{N}]+[\r\n]*", ends: str = _ENDS
) -> str:
    """The family of OpenAI's cl100k_base, https://github.com/openai/tiktoken/blob/main/tiktoken_ext/openai_public.py."""
    return rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}|{others}|{ends}"


def _o200k(digits: str, contraction: str, letters: str = r"\p{L}") -> str:
    """The family of o200k_base: words are split where lower case changes to upper case, in ASCII."""
    first = rf"[^\r\n\p{{L}}\p{{N}}]?[{letters}&&[^a-z]]*[{letters}&&[^A-Z]]+{contraction}"
    second = rf"[^\r\n\p{{L}}\p{{N}}]?[{letters}&&[^a-z]]+[{letters}&&[^A-Z]]*{contraction}"
    return rf"{first}|{second}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_ENDS}"


def _caseless(letters: str, digits: str, others: str = r" ?[^\s\p{L}\p{N}]+[\r\n/]*") -> str:
    """The family of o200k_base, but words are not split by case."""
    return rf"[^\r\n\p{{L}}\p{{N}}]?{letters}+{_CONTRACTION}?|{digits}|{others}|{_ENDS}"


_DEEPSEEK3_WORD = (
    _ASCII_WORD + r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _ENDS
)
# https://huggingface.co/moonshotai/Kimi-K2-Instruct/blob/main/tokenization_kimi.py
_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ebef\U0002f800-\U0002fa1f"
_KIMI_K2 = f"[{_HAN}]+|" + _caseless(
    rf"[\p{{L}}&&[^{_HAN}]]", r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*"
)
# Letters of all scripts that have case, as listed in https://huggingface.co/deepseek-ai/deepseek-llm-7b-base.
_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
    "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff&&\\S]+"
_HAN_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
# The model's own expression has \uf900-\ufaff and \u0e00-\u0e7f in place of the two ranges of the first line.
_AFMOE_SCRIPTS = (
    "[\u8c48-\ufaff\u0e40-\u0e7f"
    "\u4e00-\u9fff\u3400-\u4dbf\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)

DEFAULT: Final = PreTokenizer(
    (r"[\p{P}\$\+<=>\^~\|]+", _GPT2_EXPRESSION, r"\p{N}+", "[0-9][0-9][0-9]")
)
_GPT2 = PreTokenizer((_GPT2_EXPRESSION,))
_SINGLE_DIGITS = PreTokenizer((r"\p{N}", _GPT2_EXPRESSION))
_LLAMA3 = PreTokenizer((_cl100k(r"\p{L}", r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True)
_DBRX = PreTokenizer(_LLAMA3.patterns)
_QWEN2 = PreTokenizer((_cl100k(r"\p{L}", r"\p{N}"),), clean_up_spaces=False)
_DEEPSEEK3 = PreTokenizer((r"\p{N}{1,3}", _HAN_KANA, _DEEPSEEK3_WORD), clean_up_spaces=False)
_SPARK = PreTokenizer(
    (
        r"\p{N}{1,3}",
        _HAN_KANA,
        _ASCII_WORD + r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+",
        r"\p{N}",
    ),
    clean_up_spaces=False,
)
# Qwen2's without contractions: a suffix after an apostrophe stays with its word.
_TURKISH = rf"[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_ENDS}"
_GPT4O = PreTokenizer((_o200k(r"\p{N}{1,3}", _CONTRACTION + "?"),), clean_up_spaces=False)
_NEWLINES = PreTokenizer((r"[^\n]+|\n+",), byte_level=False, escape_whitespaces=True)
_GEMMA4 = replace(_NEWLINES, newline_runs=True, always_bos=True)

_TEKKEN = PreTokenizer(
    (_o200k(r"\p{N}", ""),), ignore_merges=True, add_bos=True, clean_up_spaces=False
)
_CHAMELEON = PreTokenizer(
    (
        "<sentinel:[0-9]+>",
        "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
        r"([\t\n]|    |  )",
        r"\p{N}",
        r"[\p{P}!-/:-@\[-`{-~]",
        _GPT2_EXPRESSION,
    ),
    add_bos=True,
    clean_up_spaces=False,
)
_YOUTU = PreTokenizer(
    (
        "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f"
        "\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        _caseless(r"[\p{L}\p{M}]", r"\p{N}"),
    ),
    ignore_merges=True,
    clean_up_spaces=False,
)
_FALCON = PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2_EXPRESSION, "[0-9][0-9][0-9]"))
_DEEPSEEK_LLM = PreTokenizer(
    (
        "[\r\n]",
        rf"\s?[{_CASED}]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001-\u3002]+",
        r"\s+$",
        _CJK,
        r"\p{N}+",
    ),
    clean_up_spaces=False,
)
_DEEPSEEK_CODER = PreTokenizer(
    ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}"), clean_up_spaces=False
)

_GROUPS: Final = (
    (DEFAULT, "default"),
    (_GPT2, "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert jina-v1-en "
            "jina-v2-code roberta-bpe mpt olmo jais exaone4"),
    (replace(_GPT2, clean_up_spaces=False), "trillion granite-docling"),
    (_SINGLE_DIGITS, "starcoder refact codeshell exaone minerva-7b mellum2"),
    (replace(_SINGLE_DIGITS, clean_up_spaces=False), "command-r smollm"),
    (_LLAMA3, "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano"),
    (_DBRX, "dbrx smaug-bpe chatglm-bpe"),
    (replace(_DBRX, ignore_merges=True), "glm4 glm5"),
    (PreTokenizer((
        _cl100k(r"\p{L}", r"\p{N}{1,3}", ends=r"\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|"
                r"\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"),
    )), "jais-2"),
    (_QWEN2, "qwen2 deepseek-r1-qwen kormo f2llmv2 hunyuan grok-2 solar-open"),
    (replace(_QWEN2, clean_up_spaces=True), "stablelm2 megrez"),
    (PreTokenizer((_cl100k(r"[\p{L}\p{M}]", r"\p{N}", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"),), clean_up_spaces=False),
     "qwen35"),
    (PreTokenizer(("[^\\n]+|\\n+", *_QWEN2.patterns), clean_up_spaces=False), "laguna"),
    (PreTokenizer((_cl100k(r"\p{L}", r"\p{N}", ends=r"\s*[\r\n]|\s+(?!\S)|\s+"),), clean_up_spaces=False),
     "bailingmoe bailingmoe2 llada-moe"),
    (PreTokenizer((_cl100k(r"\p{L}", r"\p{N}", r" ?[^\s\p{L}\p{N}\r\n]+"),), clean_up_spaces=False), "seed-coder"),
    (PreTokenizer((
        _cl100k(r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)", r"\p{N}", r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
                r"\s*[\r\n]|\s+(?!\S)|\s+"),
    )), "exaone-moe"),
    (PreTokenizer((r"\p{N}{1,3}", _cl100k(r"\p{L}", r"\p{N}+")), ignore_merges=True), "minicpm5"),
    (_DEEPSEEK_LLM, "deepseek-llm"),
    (_DEEPSEEK_CODER, "deepseek-coder"),
    (_DEEPSEEK3, "deepseek-v3 hunyuan-dense joyai-llm hy_v4"),
    (_SPARK, "spark2_5"),
    (PreTokenizer((_TURKISH,), clean_up_spaces=False), "ufakzeka"),
    (_FALCON, "falcon"),
    (PreTokenizer((_BLOOM,)), "bloom gpt3-finnish"),
    (PreTokenizer((_BLOOM,), clean_up_spaces=False), "poro-chat"),
    (PreTokenizer((_BLOOM, r"\p{N}"), clean_up_spaces=False), "viking"),
    (_TEKKEN, "tekken"),
    (_CHAMELEON, "chameleon"),
    (_GPT4O, "gpt-4o llama4 kanana2 minimax-m2 talkie"),
    (PreTokenizer((_o200k(r"\p{N}{1,3}", _CONTRACTION + "?", r"\p{L}\p{M}"),), ignore_merges=True,
                  clean_up_spaces=False), "granite-embed-multi-97m"),
    (PreTokenizer((_caseless(r"[\p{L}\p{M}]", r"\p{N}{1,3}"),), clean_up_spaces=False, digits=Digits.ATTACHED),
     "tiny_aya cohere2moe"),
    (_YOUTU, "youtu"),
    (PreTokenizer((_KIMI_K2,), clean_up_spaces=False), "kimi-k2"),
    (PreTokenizer((_AFMOE_SCRIPTS, _DEEPSEEK3_WORD), clean_up_spaces=False, digits=Digits.ATTACHED), "afmoe"),
    (PreTokenizer((r"\p{N}+",), clean_up_spaces=False, digits=Digits.ASCII), "superbpe"),
    (_GEMMA4, "gemma4 granite-embed-multi-311m"),
    (replace(_NEWLINES, clean_up_spaces=False), "sarvam-moe"),
    (PreTokenizer((), byte_level=False, words_only=True), "whitespace"),
)  # fmt: skip

PRE_TOKENIZERS: Final[Mapping[str, PreTokenizer]] = {
    name: pre for pre, names in _GROUPS for name in names.split()
}
