"""Random texts, damaged vocabularies and random programs, for as long as PLAIT_FUZZ_SECONDS says. Goals G4, G9, G12.

Each round has a seed of its own, which a failure names: PLAIT_FUZZ_SEED begins there. `./dev fuzz` runs this under
sanitizers; GGUF files and states are damaged in C++ (tests/cpp/fuzz).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import plait
import pytest
from python.cache.test_cache_machine import VARIANTS, play
from python.drive import UNDER_ASAN
from python.reference_data import find_model

HOSTILE = Path(__file__).parent
SECONDS = float(os.environ.get("PLAIT_FUZZ_SECONDS", 0.5))
SEED = int(os.environ.get("PLAIT_FUZZ_SEED", 1))


@pytest.fixture
def fuzz(record_property) -> Callable[[Callable[[random.Random], object], str], None]:
    """round(random) with one seed after the other, until the time is over."""

    def fuzz(play_round: Callable[[random.Random], object], what: str) -> None:
        end = time.monotonic() + SECONDS
        n = 0
        while n == 0 or time.monotonic() < end:
            try:
                play_round(random.Random(SEED + n))
            except BaseException as error:
                raise AssertionError(f"PLAIT_FUZZ_SEED={SEED + n}") from error
            n += 1
        under = " under ASan" if UNDER_ASAN else ""
        record_property("figure", f"{n} {what}{under}")

    return fuzz


PLANES = [  # 0xD800 to 0xDFFF: halves of surrogate pairs
    (0, 0x80), (0x80, 0x800), (0x800, 0xD800), (0xD800, 0xE000), (0xE000, 0x10000), (0x10000, 0x110000),
]  # fmt: skip
HARD = [
    "<s>", "</s>", "<|endoftext|>", "<0x41>", "<0x", "\u2581", "\u200b", "\u0301", "\u202e", "\ufeff", "\0", "\r\n",
    "\U0001f469\u200d\U0001f4bb", " " * 300, "a" * 300, "1" * 300, "\u0e01\u0e33" * 20, "'s", "\u1100\u1161\u11a8",
]  # fmt: skip


def some_text(rng: random.Random) -> str:
    parts = []
    for _ in range(rng.randrange(12)):
        if rng.random() < 0.4:
            parts.append(rng.choice(HARD))
        else:
            low, high = rng.choice(PLANES)
            parts.append(
                "".join(chr(rng.randrange(low, high)) for _ in range(rng.randrange(1, 20)))
            )
    return "".join(parts)


@pytest.fixture(params=["spm", "gpt-2", "bert-bge", "llama-spm", "t5"])
def tokenizer(request, tiny, data_dir) -> plait.Tokenizer:
    match request.param:
        case "spm":
            return tiny.tokenizer
        case "t5":
            return plait.Model(data_dir / "conformance" / "t5" / "model.gguf").tokenizer
    return plait.Tokenizer.from_gguf(data_dir / "vocab" / f"ggml-vocab-{request.param}.gguf")


@pytest.mark.goal("G4")
def test_any_text_is_encoded_or_refused(tokenizer, fuzz):  # G4 R7
    def play_round(rng: random.Random) -> None:
        text = some_text(rng)
        try:
            ids = tokenizer.encode(text, parse_special=rng.random() < 0.5)
        except ValueError:
            with pytest.raises(UnicodeEncodeError):
                text.encode()  # a lone surrogate, which cannot be encoded
            return
        assert all(0 <= token < tokenizer.n_vocab for token in ids.tolist())
        tokenizer.decode(ids)
        tokenizer.decode([rng.randrange(tokenizer.n_vocab) for _ in range(rng.randrange(50))])
        stream = tokenizer.stream()
        assert all(isinstance(stream.push(token), str) for token in ids[:30].tolist())

    fuzz(play_round, "texts")


@pytest.mark.goal("G12")
def test_any_call_returns_or_raises(tiny_path, data_dir, fuzz):  # G12 A1 A2
    from python.hostile.test_hostile import output

    models = [tiny_path, *(data_dir / "conformance" / k / "model.gguf" for k in ("gemma3", "jamba", "t5"))]  # fmt: skip

    def play_round(rng: random.Random) -> None:
        output("calls.py", rng.choice(models), rng.randrange(2**60), 300, seconds=300)

    fuzz(play_round, "programs of 300 calls")


@pytest.mark.goal("G9")
def test_any_program_agrees_with_plain_lists(tiny_path, data_dir, fuzz):  # G9 G10
    paths = [
        tiny_path if variant.model is None else find_model(data_dir, variant.model)
        for variant in VARIANTS
    ]
    playable = [(v, path) for v, path in zip(VARIANTS, paths, strict=True) if path is not None]

    def play_round(rng: random.Random) -> None:
        variant, path = rng.choice(playable)
        play(plait.Model(path), variant, rng.randrange(2**31), 100)

    fuzz(play_round, "programs of 100 calls beside plain lists")
