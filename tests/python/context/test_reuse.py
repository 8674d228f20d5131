"""Reused plans give the same bits as new ones, for every kind of memory and any calls in between."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import plait
import pytest
from python.drive import same_bits

from python import lora_models

N_CTX, N_SEQ = 48, 4
KINDS = {
    "unified": None, "streams": None, "sliding": "gemma3", "recurrent": "mamba", "hybrid": "jamba", "cross": "t5",
    "none": "bert", "latent": "deepseek2", "experts": "mixtral", "axes": "qwen2vl",
}  # fmt: skip


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return request.param


@pytest.fixture
def model(kind, tiny, request):
    if KINDS[kind] is None:
        return tiny
    data = request.getfixturevalue("data_dir")
    return plait.Model(data / "conformance" / KINDS[kind] / "model.gguf")


# What adapters of these models change: parts of names of tensors.
ADAPTED = (
    "token_embd.",
    "attn_output.",
    "attn_qkv.",
    "ffn_down",
    "ssm_in.",
    "ssm_out.",
    "time_mix_output.",
)


def adapters_of(model: plait.Model, folder: Path) -> list[plait.Adapter]:
    made = []
    for seed in (1, 2):
        weights = {
            name: np.empty(info.shape)
            for name, info in model.tensors.items()
            if len(info.shape) > 1 and any(part in name for part in ADAPTED)
        }
        tensors = lora_models.deltas(weights, list(weights)[seed - 1 :], 4, seed)
        path = lora_models.write_adapter(folder / f"{seed}.gguf", model.arch, tensors)
        made.append(model.load_lora(path))
    return made


def halve(rows: np.ndarray) -> np.ndarray:
    if len(rows) == 3:
        raise ValueError("not three")
    return rows / 2


class Pair:
    """Two contexts that play the same calls, one with reuse and one without."""

    def __init__(self, model: plait.Model, kind: str, seed: int, folder: Path) -> None:
        options: dict[str, Any] = {"n_ctx": N_CTX, "n_seq_max": N_SEQ, "n_ubatch": 16, "threads": 1}
        if kind == "streams":
            options["kv"] = "streams"
        self.both = [plait.Context(model, **options, graph_reuse=reuse) for reuse in (True, False)]
        self.model, self.kind = model, kind
        self.random = np.random.default_rng(seed)
        self.adapters = adapters_of(model, folder)
        vector = self.random.standard_normal((model.n_layer, model.n_embd))
        self.vector = vector.astype(np.float32)
        self.open = [ExitStack() for _ in self.both]  # captures and edits
        self.seen: list[Any] = [None, None]

    def each(self, call) -> None:
        """The same outcome from both: arrays of the same bits, or the same kind of refusal."""
        results = []
        for ctx in self.both:
            try:
                results.append(call(ctx))
            except (ValueError, RuntimeError, NotImplementedError) as error:
                results.append(type(error))
        one, other = results
        if isinstance(one, plait.Output):
            for a, b in ((one.logits, other.logits), (one.embeddings, other.embeddings)):
                assert (a is None) == (b is None)
                assert a is None or same_bits(a, b)
        else:
            assert one == other
        if self.seen[0] is not None:
            a, b = (dict(seen.calls[-1]) if seen.calls else {} for seen in self.seen)
            assert a.keys() == b.keys()
            assert all(same_bits(a[name], b[name]) for name in a)

    def batch(self) -> plait.Batch:
        batch = plait.Batch()
        single = self.random.random() < 0.5
        wanted = self.random.choice(["last", "all", "none"])
        for seq in self.random.permutation(N_SEQ)[: self.random.integers(1, N_SEQ + 1)].tolist():
            n = 1 if single else int(self.random.integers(1, 12))
            if self.random.random() < 0.1 and self.kind not in ("none", "cross"):
                rows = self.random.standard_normal((n, self.model.n_embd)).astype(np.float32)
                made = plait.Batch()
                made.add_embeddings(rows, seq=seq, logits=wanted)
                return made
            batch.add_sequence(self.random.integers(3, 250, n), seq=seq, logits=wanted)
        return batch

    def steer(self) -> None:
        """Something else is added to the model, or looked at, from here on; mostly nothing."""
        how = self.random.choice(["none"] * 4 + ["lora", "two", "vector", "edit", "capture"])
        scale = float(self.random.standard_normal())
        self.seen = [None, None]
        for i, ctx in enumerate(self.both):
            self.open[i].close()
            ctx.set_lora(None)
            ctx.set_control_vector(None)
            match how:
                case "lora":
                    ctx.set_lora({self.adapters[0]: scale})
                case "two":
                    ctx.set_lora({self.adapters[1]: scale, self.adapters[0]: -scale})
                case "vector":
                    ctx.set_control_vector(scale * self.vector)
                case "edit":
                    self.open[i].enter_context(ctx.edit("l_out.0", halve))
                    self.open[i].enter_context(ctx.edit("l_out.1", self.vector[1]))
                case "capture":
                    self.seen[i] = self.open[i].enter_context(ctx.capture("l_out.*"))

    def call(self) -> None:
        seq, other = (int(s) for s in self.random.integers(0, N_SEQ, 2))
        p0, p1 = sorted(self.random.integers(0, N_CTX, 2).tolist())
        match self.random.choice(
            ["decode"] * 12 + ["encode"] * 2 + ["rm", "cut", "cp", "add", "clear", "defrag"]
        ):
            case "decode":
                batch = self.batch()
                self.each(lambda ctx: ctx.decode(batch))
            case "encode":
                batch = self.batch()
                self.each(lambda ctx: ctx.encode(batch))
            case "rm":
                self.each(lambda ctx: ctx.kv.seq_rm(seq))
            case "cut":
                self.each(lambda ctx: ctx.kv.seq_rm(seq, p1))
            case "cp":
                self.each(lambda ctx: ctx.kv.seq_cp(seq, other))
            case "add":
                self.each(lambda ctx: ctx.kv.seq_add(seq, p0, None, 2))
            case "clear":
                self.each(lambda ctx: ctx.kv.clear())
            case "defrag":
                self.each(lambda ctx: ctx.kv.defrag() >= 0)

    def play(self, n: int) -> None:
        for i in range(n):
            if i == n // 2:
                stats = self.both[0].stats
                assert stats.plans_reused > 5 * stats.plans_built  # S0-03, S0-23, S1-10
            if i > n // 2 and i % 8 == 0:
                self.steer()
            self.call()
        new = {"new adapter set", "new edit set", "new capture set"}
        assert new <= self.both[0].stats.plan_misses.keys()
        assert self.both[1].stats.plans_reused == 0
        for ctx in self.both:
            ctx.close()


def test_two_thousand_random_calls_with_and_without_reuse(
    model, kind, tmp_path
):  # S1-05, S0-09, S1-37
    Pair(model, kind, seed=2, folder=tmp_path).play(2000)


def test_a_growing_sequence_needs_no_further_plan(tiny):  # S0-01, S0-20, S1-42, S1-01
    with (
        plait.Context(tiny, n_ctx=4096) as ctx,
        plait.Context(tiny, n_ctx=4096, graph_reuse=False) as plain,
    ):
        random = np.random.default_rng(3)
        built = None
        for i in range(4096):
            batch = plait.Batch()
            batch.add(int(random.integers(3, 280)), logits=True)
            logits = ctx.decode(batch).logits
            if i % 64 == 0:
                assert same_bits(logits, plain.decode(batch).logits)
            else:
                plain.decode(batch)
            built = built or ctx.stats.plans_built
        assert ctx.stats.plans_built == built
        assert ctx.stats.plans_reused == 4096 - built


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 32, 512])
def test_a_shape_is_built_once_whatever_its_size(tiny, n):  # S0-02, S1-07
    with plait.Context(tiny, n_ctx=1100, n_seq_max=2) as ctx:
        for seq in (0, 1):
            batch = plait.Batch()
            batch.add_sequence(np.arange(3, 3 + n) % 280, seq=seq)
            ctx.decode(batch)
            if seq == 0:
                built = ctx.stats.plans_built
        assert ctx.stats.plans_built == built
        assert ctx.stats.plans_reused >= 1
