"""Token ids of every pre-tokenizer and of PLaMo 2, compared with llama.cpp on texts of many scripts.

PLAIT_LLAMA_CPP names an interpreter that has llama-cpp-python 0.3.36:
PLAIT_LLAMA_CPP=... pytest -m oracle tests/python/oracle/test_llama_cpp_tokens.py
PLAIT_FUZZ_TEXTS is the number of random texts, PLAIT_FUZZ_SEED their seed.

Each vocabulary is made from the texts themselves: byte-pair merges learned without any splitting, then the remaining
pairs of neighbours. Almost any two neighbouring pieces would merge, so a difference in where a text is split shows in
the ids.
"""

import json
import os
import random
import subprocess
import unicodedata
from itertools import pairwise
from pathlib import Path

import numpy as np
import plait
import pytest
from plait.tokenizer.bpe import byte_alphabet
from plait.tokenizer.patterns import PRE_TOKENIZERS
from python.gguf_writer import write

PEER = os.environ.get("PLAIT_LLAMA_CPP")
pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(not PEER, reason="PLAIT_LLAMA_CPP names no interpreter"),
]
N_TEXTS = int(os.environ.get("PLAIT_FUZZ_TEXTS", "500"))
SEED = int(os.environ.get("PLAIT_FUZZ_SEED", "27"))
NORMAL, BYTE = 1, 6
SPACE = "\u2581"
LOWERCASE = "whitespace, lower case"
PLAMO = "plamo2"
NAMES = [*sorted(PRE_TOKENIZERS), LOWERCASE]

LETTERS = (
    "abcdefgstmdlrev", "ABCDEFGSTMDLREV", "\u00e9\u00fc\u00df\u00f1\u00e6", "\u00c9\u00dc\u00d1\u00c6\u0130",
    "\u0436\u0438\u043b\u0430", "\u0416\u0418\u041b\u0410", "\u03b1\u03b2\u03c3\u03c2", "\u0391\u0392\u03a3",
    "\u0e01\u0e34\u0e48\u0e40\u0e21\u0e37\u0e2d\u0e07\u0e44\u0e17\u0e22\u0e33\u0e51",  # Thai
    "\u0939\u093f\u0928\u094d\u0926\u0940\u0964\u0967\u0966",  # Devanagari
    "\u09ac\u09be\u0982\u09b2\u09be", "\u0ba4\u0bae\u0bbf\u0bb4\u0bcd",  # Bengali, Tamil
    "\u0645\u064e\u0631\u0652\u062d\u0628\u0627\u060c\u06d4", "\u05e9\u05b8\u05dc\u05d5\u05b9\u05dd",  # Arabic, Hebrew
    "\u0e9e\u0eb2\u0eaa\u0ebb", "\u1781\u17d2\u1798\u17c2\u179a", "\u1019\u103c\u1014\u103a\u1019\u102c",
    "\u6f22\u5b57\u4f60\u597d\u9fa5\u9fa6\u3400\u8c48\uf900\u3007", "\u3072\u3089\u304c\u306a\u3099\u30ab\u30bf\u30fc",
    "\uff66\uff9f\uff71", "\ud55c\uad6d\uc5b4\u1100\u1161\u3131\u318e", "\u3105\u3106\u02ca",  # Hangul, Bopomofo
    "\u01c5\u01c8\u02b0\u02b7\u1d2c\u2c7c", "\U00010400\U00010428\U0001d400\U00020000\U0002a700",
    "\ua000\ua4d0\ua500\ua960\uaa00\uaa40\uab30\uabc0",  # between Han and its compatibility forms
)  # fmt: skip
MARKS = "\u0301\u0308\u0327\u20dd\u0e48\u094d\u064b\u05b8\u200d\ufe0f\u3099\u0345"
DIGITS = (
    "0123456789", "\u0967\u0968\u0969", "\u0661\u0662", "\u0e51\u0e52", "\u00bd\u00b2\u2163\u2460\u3007\u4e00",
    "\uff11\uff12", "\U0001d7ce",
)  # fmt: skip
SPACES = (
    " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\t\t", " \n", "\n ", "\u00a0", "\u3000", "\u3000\u3000", "\u2003",
    "\u0085", "\u2028", "\u1680", "\x0b", "\x0c", "\x1c", "\x1f", " " * 17, "\n\n\n\n", "\u200b", "\u180e",
)  # fmt: skip
PUNCTUATION = (
    *"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "...", "//", "->", "((", "\u2026", "\u3002", "\uff0c", "\u3001", "\u201c",
    "\u201d", "\u2019", "\u2018s", "\u00bf", "\uff01", "\uff5e", "\u2014", "\u00a3", "\u20ac", "\u00ac", "\u2200",
    "\ufe30", "\ufe50", "\u301c", "\u00b4",
)  # fmt: skip
EMOJI = (
    "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd", "\u2764\ufe0f",
    "\U0001f1e9\U0001f1ea", "1\ufe0f\u20e3", "\u263a", "\U0001f3f4\U000e0067\U000e007f",
)  # fmt: skip
SUFFIXES = (
    "'s", "'S", "'t", "'re", "'RE", "'Ve", "'m", "'ll", "'lL", "'d", "'x", "'", "\u2019s", "'\u017f",
)  # fmt: skip
FIXED = (
    "Hello", "", " ", "\n", "Hello, World! It's 12345 o'clock", "getElementById(HTTPServerError)", "IT'S WE'LL i'm",
    "1234567 x 12 123 1234.5678", "abc123 456def 1,234,567", "a  5", "a   123456", "x1234567",
    "\u00bd1234 1\u0967 12\u00b2",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22 \u0e40\u0e21\u0e37\u0e2d\u0e07",
    "\u041f\u0440\u0438\u0432\u0435\u0442\u041c\u0438\u0440 \u00c9cole\u00c9cole", "<sentinel:12> IMGIMGABCDZ",
    "e\u0301a\u0301 \u0301 \u0301\u0301x", "\u3000\u3000a\u3000\u3002", "\u0e01\u3000\u0e01",
    "\u6f22\u3000\u5b57\u2003\u5b57", "x" + " " * 600 + "y", "\n\n\n\n\n \n\t\n x",
    "\u3068\u6f22\u5b57\u3068Kanji123", "foo\r\n\r\nbar/\n//\r\n", "a_b-c.d/e\\f|g", "\ud55c\uad6d\uc5b4\u3131",
    "\U00020000\u6f22a",
)  # fmt: skip


def random_text(rng: random.Random) -> str:
    """Return words, numbers, marks, white space and symbols in random order."""

    def word() -> str:
        alphabet = rng.choice(LETTERS)
        return "".join(rng.choices(alphabet, k=rng.randint(1, 6)))

    def mixed() -> str:
        letters = "".join(rng.choices(LETTERS, k=2)) + MARKS
        return "".join(rng.choices(letters, k=rng.randint(1, 7)))

    def camel() -> str:
        return "".join(word().title() if rng.random() < 0.5 else word() for _ in range(3))

    def number() -> str:
        return "".join(rng.choices(rng.choice([DIGITS[0], *DIGITS]), k=rng.randint(1, 9)))

    def character() -> str:
        while True:  # of Unicode 3.2, whose categories no later version changed
            code = rng.choice(
                [rng.randrange(0x3000), rng.randrange(0x10000), rng.randrange(0x20000)]
            )
            if unicodedata.ucd_3_2_0.category(chr(code)) not in ("Cn", "Cs"):
                return chr(code)

    makers = [
        (word, 8), (mixed, 3), (camel, 3), (number, 4), (character, 2), (lambda: rng.choice(SPACES), 5),
        (lambda: " ", 6), (lambda: rng.choice(PUNCTUATION), 4), (lambda: rng.choice(MARKS), 2),
        (lambda: rng.choice(EMOJI), 1), (lambda: rng.choice(SUFFIXES), 3),
    ]  # fmt: skip
    chosen = rng.choices(
        [maker for maker, _ in makers], [n for _, n in makers], k=rng.randint(1, 14)
    )
    return "".join(maker() for maker in chosen)


def texts() -> list[str]:
    rng = random.Random(SEED)
    found = [*FIXED, *(random_text(rng) for _ in range(N_TEXTS))]
    return [text.replace(SPACE, "") for text in found]


def byte_vocabulary(corpus: list[str]) -> tuple[list[str], list[int], list[str]]:
    """Return the tokens, types and merges of a vocabulary over bytes in which almost all neighbours merge."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trained.train_from_iterator(
        corpus,
        trainers.BpeTrainer(
            vocab_size=3000,
            initial_alphabet=sorted(byte_alphabet()),
            max_token_length=12,
            show_progress=False,
        ),
    )
    alphabet = byte_alphabet()
    merges = {tuple(pair): None for pair in json.loads(trained.to_str())["model"]["merges"]}
    # Then each character of several bytes, and each pair of neighbouring characters.
    spelled = [
        "".join(alphabet[byte] for byte in char.encode()) for char in sorted({*"".join(corpus)})
    ]
    for name in spelled:
        for i in range(1, len(name)):
            merges[name[:i], name[i]] = None
    for text in corpus:
        for left, right in pairwise("".join(alphabet[b] for b in char.encode()) for char in text):
            merges[left, right] = None
    tokens = list(dict.fromkeys([*alphabet, *(left + right for left, right in merges)]))
    return tokens, [NORMAL] * len(tokens), [" ".join(pair) for pair in merges]


def character_vocabulary(corpus: list[str]) -> tuple[list[str], list[int], list[str]]:
    """Return a vocabulary over characters: byte tokens, most characters, pairs of neighbours, runs of newlines."""
    characters = sorted({*"".join(corpus)} - {" "})
    known = [char for i, char in enumerate(characters) if i % 7 or char == "\n"]
    pairs = {
        pair: None
        for text in corpus
        for pair in pairwise(text.replace(" ", SPACE))
        if {*pair} <= {*known, SPACE}
    }
    tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    n_bytes = len(tokens)
    tokens += dict.fromkeys(
        [SPACE, *known, "\n\n", "\n\n\n", *(left + right for left, right in pairs)]
    )
    types = [BYTE] * n_bytes + [NORMAL] * (len(tokens) - n_bytes)
    return tokens, types, [" ".join(pair) for pair in pairs]


def plamo_file(path: Path, corpus: list[str]) -> Path:
    """Write a vocabulary of most characters and of random parts of the texts, with random scores."""
    rng = np.random.default_rng(SEED)
    characters = sorted({*"".join(corpus)})
    parts = {char: None for i, char in enumerate(characters) if i % 7}
    for text in corpus:
        for start in rng.integers(0, max(1, len(text)), 4).tolist():
            parts[text[start : start + int(rng.integers(2, 7))]] = None
    parts.pop("", None)
    special = ["<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>", "<|plamo:pad|>"]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *parts]
    scores = -rng.choice([1.0, 2.5, 7.125, 999.0, 1500.0, 2500.0], len(tokens))
    scores += rng.choice([0.0, 0.25, 1 / 3], len(tokens))
    keys = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": PLAMO,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(
            [2, 3, 3, 3] + [BYTE] * 256 + [NORMAL] * len(parts), np.int32
        ),
        "tokenizer.ggml.scores": scores.astype(np.float32),
        "tokenizer.ggml.add_bos_token": True,
    }
    return write(path, keys, {})


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Return the texts, and for each pre-tokenizer its file and the ids of llama.cpp."""
    folder = tmp_path_factory.mktemp("tokens")
    corpus = texts()
    vocabularies = {True: byte_vocabulary(corpus), False: character_vocabulary(corpus)}
    files = {}
    for name in NAMES:
        pre = "whitespace" if name == LOWERCASE else name
        tokens, types, merges = vocabularies[PRE_TOKENIZERS[pre].byte_level]
        keys = {
            "general.architecture": "llama",
            "tokenizer.ggml.model": pre if pre in ("gemma4", "whitespace") else "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": np.array(types, np.int32),
            "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.ggml.eos_token_id": 1,
            "tokenizer.ggml.normalizer.lowercase": name == LOWERCASE,
        }
        files[name] = write(folder / f"{name}.gguf", keys, {})
    files[PLAMO] = plamo_file(folder / f"{PLAMO}.gguf", corpus)
    script = Path(__file__).with_name("llama_cpp_tokens.py")
    jobs = {"texts": corpus, "files": [str(path) for path in files.values()]}
    (folder / "jobs.json").write_text(json.dumps(jobs))
    subprocess.run(
        [PEER, script, folder / "jobs.json", folder / "ids.json"], check=True, timeout=600
    )
    ids = json.loads((folder / "ids.json").read_text())
    return corpus, dict(zip(files, zip(files.values(), ids, strict=True), strict=True))


@pytest.mark.parametrize("name", [*NAMES, PLAMO])
def test_ids_equal_those_of_llama_cpp(compared, name):
    corpus, files = compared
    path, want = files[name]
    tokenizer = plait.Tokenizer.from_gguf(path)
    wrong = []
    assert tokenizer.encode(corpus[0]).tolist() == want.pop()
    for text, ids in zip(corpus, want, strict=True):
        got = tokenizer.encode(text, add_special=False, parse_special=False).tolist()
        if got != ids:
            wrong.append(
                (
                    text,
                    *([tokenizer.decode([i], clean_up=False) for i in row] for row in (got, ids)),
                )
            )
    assert not wrong, (
        f"{len(wrong)} of {len(corpus)} texts, the shortest: {min(wrong, key=lambda it: len(it[0]))!r}"
    )
