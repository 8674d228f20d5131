"""Gemma 3n against its formulas in float64. llama.cpp's stored logits hold the steps of its table for GELU."""

from __future__ import annotations

import numpy as np
import plait
import pytest
from python.reference_data import model_path
from reference.attend import attend
from reference.mix import mix
from reference.rms_norm import rms_norm
from reference.rope import rope

N_TOKENS, EPSILON = 40, 1e-6
Floats = np.ndarray


@pytest.fixture(scope="module")
def model(data_dir):
    return plait.Model(model_path(data_dir, "gemma3n-a"))


def length(x: Floats) -> Floats:
    return np.sqrt((x**2).sum(-1, keepdims=True))


def gelu(x: Floats) -> Floats:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def norm(x: Floats, weight: Floats | None = None) -> Floats:
    return rms_norm(x, np.ones(x.shape[-1]) if weight is None else weight, EPSILON)


class Gemma3n:
    def __init__(self, model: plait.Model) -> None:
        self.of = {name: np.array(model.tensor(name), np.float64) for name in model.tensors}
        key = model.metadata.__getitem__
        self.n_layers, self.width = key("gemma3n.block_count"), key("gemma3n.embedding_length")
        self.slides = list(key("gemma3n.attention.sliding_window_pattern"))
        self.window = key("gemma3n.attention.sliding_window")
        self.bases = key("gemma3n.rope.freq_base"), key("gemma3n.rope.freq_base_swa")
        self.n_owners = self.n_layers - key("gemma3n.attention.shared_kv_layers")
        self.deviations = list(key("gemma3n.activation_sparsity_scale"))
        self.stored: dict[bool, tuple[Floats, Floats]] = {}  # keys and values, by kind of layer

    def vectors(self, tokens: Floats, x: Floats) -> Floats:
        own = self.of["per_layer_token_embd.weight"][tokens].reshape(len(tokens), self.n_layers, -1)
        projected = (x @ self.of["per_layer_model_proj.weight"].T / np.sqrt(self.width)).reshape(
            own.shape
        )
        own = own * np.sqrt(own.shape[-1])
        return (norm(projected, self.of["per_layer_proj_norm.weight"]) + own) / np.sqrt(2)

    def attention(self, i: int, h: Floats) -> Floats:
        n, slides = len(h), bool(self.slides[i])
        w = {
            c: self.of[f"blk.{i}.attn_{c}.weight"]
            for c in ("q", "k", "v", "q_norm", "k_norm", "output")
        }
        heads = {c: (h @ w[c].T).reshape(n, -1, len(w["q_norm"])) for c in "qkv"}
        dim = len(w["q_norm"])
        angles = np.arange(n)[:, None] * self.bases[slides] ** (-np.arange(0, dim, 2) / dim)
        table = np.stack([np.cos(angles), np.sin(angles)], -1)
        q, k = (rope(norm(heads[c], w[f"{c}_norm"]), table, interleaved=False) for c in "qk")
        if i < self.n_owners:
            self.stored[slides] = k, norm(heads["v"])
        k, v = self.stored[slides]
        last = np.arange(1, n + 1)
        first = np.maximum(last - self.window, 0) if slides else np.zeros(n, int)
        return attend(q, k, v, first, last, 1.0).reshape(n, -1) @ w["output"].T

    def block(self, i: int, h: Floats) -> Floats:
        gate, up = (h @ self.of[f"blk.{i}.ffn_{part}.weight"].T for part in ("gate", "up"))
        if np.isfinite(self.deviations[i]):
            cut = gate.mean(-1, keepdims=True) + self.deviations[i] * gate.std(
                -1, ddof=1, keepdims=True
            )
            gate = np.maximum(gate - cut, 0)
        return (gelu(gate) * up) @ self.of[f"blk.{i}.ffn_down.weight"].T

    def layer(self, i: int, streams: Floats, vectors: Floats) -> Floats:
        w = {
            k.removeprefix(f"blk.{i}.").removesuffix(".weight"): v
            for k, v in self.of.items()
            if k.startswith(f"blk.{i}.")
        }
        n, k, width = streams.shape

        def route(x: Floats) -> Floats:
            return np.tanh(norm(x, w["altup_router_norm"]) / width @ w["altup_router"].T)

        c = (route(streams[:, 0]) @ w["altup_predict_coef"].T).reshape(n, k, k)
        predicted = streams + mix(streams, c)
        x = predicted[:, 0]
        h = norm(x, w["attn_norm"])
        low_rank = norm(h @ w["laurel_l"].T @ w["laurel_r"].T, w["laurel_post_norm"])
        z = (x + norm(self.attention(i, h), w["post_attention_norm"]) + h + low_rank) / np.sqrt(2)
        z = z + norm(self.block(i, norm(z, w["ffn_norm"])), w["post_ffw_norm"])
        d = 1 + route(z) @ w["altup_correct_coef"].T
        corrected = predicted + d[:, :, None] * (z - x)[:, None]
        gate = gelu(corrected[:, 0] * w["altup_correct_scale"] @ w["inp_gate"].T)
        y = norm(gate * vectors[:, i] @ w["proj"].T, w["post_norm"])
        corrected[:, 1:] += y[:, None]
        return corrected

    def logits(self, tokens: Floats) -> Floats:
        x = self.of["token_embd.weight"][tokens] * np.sqrt(self.width)
        others = [x @ matrix.T for matrix in self.of["altup_proj.weight"]]
        streams = np.stack([x, *(y * length(x) / length(y) for y in others)], 1)
        vectors = self.vectors(tokens, x)
        for i in range(self.n_layers):
            streams = self.layer(i, streams, vectors)
        x = streams[:, 0]
        back = [
            streams[:, j + 1] @ matrix.T
            for j, matrix in enumerate(self.of["altup_unembd_proj.weight"])
        ]
        mean = (x + sum(y * length(x) / length(y) for y in back)) / streams.shape[1]
        logits = norm(mean, self.of["output_norm.weight"]) @ self.of["token_embd.weight"].T
        return 30 * np.tanh(logits / 30)


@pytest.mark.parametrize("seed", range(3))
def test_logits_equal_the_formulas(model, seed):
    tokens = np.random.default_rng(seed).integers(3, model.n_vocab, N_TOKENS)
    with plait.Context(model, n_ctx=64, type_k="f32", type_v="f32") as ctx:
        batch = plait.Batch()
        batch.add_sequence(tokens, logits="all")
        got = ctx.decode(batch).logits.copy()
    want = Gemma3n(model).logits(tokens)
    np.testing.assert_allclose(got, want, atol=5e-4 * np.abs(want).max())
