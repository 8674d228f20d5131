"""The models and texts of bench/quality.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import plait
from plait.demo import MODEL, corpus
from plait.files import gguf

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

FACTORS = (20.0, 45.0, 100.0)
"""Factors of the injected outlier channels, by layer in turn."""


class Text(NamedTuple):
    """A sequence to compute, and the part of it that is the answer to a question."""

    tokens: list[int]
    answer: int  # number of tokens at the end, 0 if the text answers no question


def write_floats(source: plait.Model, path: Path, outliers: bool) -> Path:
    """Write a copy of a model with F32 weights, with outlier channels in the keys if requested.

    A rotation turns pairs of channels. In each layer and each head of the keys, both channels of one pair are
    multiplied by a factor, and the same channels of the queries divided by it, so that all scores stay the same.
    """
    head = gguf.read_head(source.path)
    arrays = {tensor.name: source.tensor(tensor.name).astype(np.float32) for tensor in head.tensors}
    if outliers:
        arch = str(source.metadata["general.architecture"])
        n_head = int(source.metadata[f"{arch}.attention.head_count"])
        n_kv = int(source.metadata.get(f"{arch}.attention.head_count_kv", n_head))
        for i in range(int(source.metadata[f"{arch}.block_count"])):
            factor = np.float32(FACTORS[i % len(FACTORS)])
            k, q = (arrays[f"blk.{i}.attn_{part}.weight"] for part in "kq")
            size = len(k) // n_kv
            pair = 2 * (i % (size // 2))  # of the Llama layout, which turns neighbours
            k.reshape(n_kv, size, -1)[:, pair : pair + 2] *= factor
            q.reshape(n_head, size, -1)[:, pair : pair + 2] /= factor
    f32 = gguf.TENSOR_TYPES["F32"]
    listed = [(t.name, t.shape, f32, arrays[t.name].nbytes) for t in head.tensors]
    metadata = head.metadata | {"general.file_type": gguf.Value.uint32(0)}
    gguf.write_file(path, metadata, listed, (arrays[t.name].tobytes() for t in head.tensors))
    return path


def demo_texts(model: plait.Model, n_stories: int, seed: int, split: corpus.Split) -> list[Text]:
    """Return stories, each with one of its questions and the right answer."""
    tokenizer, texts = model.tokenizer, []
    for i, story in enumerate(corpus.stories(seed, n_stories, split)):
        question, answer = story.questions[i % len(story.questions)]
        tokens = tokenizer.encode(story.text).tolist()
        tokens += tokenizer.encode(corpus.prompt(question), add_special=False).tolist()
        right = [*tokenizer.encode(answer, add_special=False).tolist(), tokenizer.eos]
        texts.append(Text(tokens + right, len(right)))
    return texts


def sampled_texts(model: plait.Model, n_texts: int, seed: int, length: int) -> list[Text]:
    """Return texts that the model generates, each with another seed."""
    start = model.tokenizer.bos if model.tokenizer.bos is not None else 1
    rng = np.random.default_rng(seed)
    tokens = [[start] for _ in range(n_texts)]
    with plait.Context(model, n_ctx=length, n_seq_max=n_texts) as ctx:
        for _ in range(length - 1):
            batch = plait.Batch()
            for i, own in enumerate(tokens):
                batch.add(own[-1], seq=i, pos=len(own) - 1, logits=True)
            logits = ctx.decode(batch).logits.astype(np.float64)
            p = np.exp(logits - logits.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            for own, row in zip(tokens, p, strict=True):
                own.append(int(rng.choice(len(row), p=row)))
    return [Text(own, 0) for own in tokens]


class Case(NamedTuple):
    """A model file with F32 weights, and its texts."""

    name: str
    path: Path
    texts: list[Text]
    calibration: list[Text]  # other texts of the same kind


def cases(folder: Path, data: Path | None, n_texts: int) -> list[Case]:
    """Write the models; return them with their texts. `data` is the folder of the reference data."""
    found = []
    sources = {"demo": MODEL}
    if data is not None:
        sources["stories260K"] = data / "models" / "stories260K-f32.gguf"
        sources["random-64"] = data / "kv" / "model.gguf"
    for name, source in sources.items():
        for outliers in (False, True):
            path = folder / f"{name}{'-outliers' if outliers else ''}.gguf"
            write_floats(plait.Model(source), path, outliers)
            model = plait.Model(path)
            if name == "demo":
                texts = demo_texts(model, n_texts, 77, "unseen")
                calibration = demo_texts(model, 64, 5, "train")
            else:
                if not outliers:  # the same texts for both
                    texts = sampled_texts(model, max(4, n_texts // 4), 1, 256)
                    calibration = sampled_texts(model, 24, 2, 256)
            found.append(Case(path.stem, path, texts, calibration))
    return found


def save_texts(texts: list[Text], path: Path) -> None:
    """Write the token ids for an engine in another process."""
    path.write_text(json.dumps([text.tokens for text in texts]))
