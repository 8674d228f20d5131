"""A shift is the rotation of stored keys by the difference of positions, and nothing else.

Every model whose cache can shift: the stored ones, and random ones of architectures without stored logits. The
frequencies are computed here, in NumPy, from the file's hyperparameters and factors.
"""

from pathlib import Path

import numpy as np
import plait
import pytest
from python.conftest import MODELS
from python.drive import feed
from python.oracle.random_models import MODELS as RANDOM
from reference.rope import rope

N_CTX, N, FIRST = 64, 24, 9
# Architectures whose pairs of rotated elements are neighbours; in all others they are the halves of a head.
NEIGHBOURS = {
    "arcee", "cohere2", "cohere2moe", "command-r", "deepseek", "deepseek2", "ernie4_5", "ernie4_5-moe", "glm4",
    "granite", "granitemoe", "internlm2", "llama", "llama4", "minicpm", "mistral3", "olmo", "smollm3", "starcoder",
}  # fmt: skip
NEVER_ROTATED = {
    "bloom", "gpt2", "granitehybrid", "jamba", "kimi-linear", "mpt", "nemotron_h", "nemotron_h_moe",
}  # fmt: skip
# Every fourth layer does not rotate: its remainder by four.
UNROTATED_LAYERS = {
    "cohere2": 3, "cohere2moe": 0, "exaone-moe": 3, "llama4": 3, "smallthinker": 0, "smollm3": 3,
}  # fmt: skip


class Hparams:
    def __init__(self, model: plait.Model) -> None:
        self.model = model
        self.arch = model.arch

    def __call__(self, name: str, otherwise=None):
        return self.model.metadata.get(f"{self.arch}.{name}", otherwise)

    def slides(self, layer: int) -> bool:
        """Whether the layer has a window, if the model has windows at all."""
        pattern = self("attention.sliding_window_pattern")
        if pattern is None:
            pattern = {"gemma2": 2, "gpt-oss": 2, "cohere2": 4, "exaone4": 4}.get(self.arch, 6)
        if np.ndim(pattern):
            return bool(pattern[layer])
        return layer % pattern != pattern - 1

    def rotates(self, layer: int) -> bool:
        if self.arch in NEVER_ROTATED:
            return False
        pattern = self("attention.sliding_window_pattern")
        by_flags = self.arch in ("cohere2", "cohere2moe", "exaone-moe") and pattern is not None
        if by_flags and np.ndim(pattern):
            return bool(pattern[layer]) or layer < self("leading_dense_block_count", 0) * (
                self.arch == "cohere2moe"
            )
        if self.arch == "smallthinker" and not self("attention.sliding_window", 0):
            return True
        if self.arch == "cohere2moe" and layer < self("leading_dense_block_count", 0):
            return True
        unrotated = UNROTATED_LAYERS.get(self.arch)
        return unrotated is None or layer % 4 != unrotated

    def frequencies(self, layer: int, head_dim: int) -> np.ndarray:
        """The angle of each pair per position."""
        base, n_rot = self("rope.freq_base", 10000.0), self("rope.dimension_count", head_dim)
        scaled = True
        if self.arch in ("gemma3", "gemma3n", "gemma4") and self.slides(layer):
            base, scaled = self("rope.freq_base_swa", 10000.0), False
            n_rot = self("rope.dimension_count_swa", n_rot)
        theta = base ** (-np.arange(0, n_rot, 2) / n_rot)
        if scaled:
            theta = theta / self.factors(n_rot // 2)
        kind, factor = self("rope.scaling.type", "linear"), self("rope.scaling.factor", 1.0) or 1.0
        if not scaled or kind == "none" or factor == 1.0:
            return theta
        if kind != "yarn":
            return theta / factor
        original = self("rope.scaling.original_context_length", self("context_length"))

        def dimension(turns: float) -> float:
            return n_rot * np.log(original / (turns * 2 * np.pi)) / (2 * np.log(base))

        low = max(np.floor(dimension(self("rope.scaling.yarn_beta_fast", 32.0))), 0)
        high = min(np.ceil(dimension(self("rope.scaling.yarn_beta_slow", 1.0))), n_rot - 1)
        ramp = np.clip((np.arange(n_rot // 2) - low) / max(high - low, 0.001), 0, 1)
        return theta / factor * ramp + theta * (1 - ramp)

    def factors(self, n: int) -> np.ndarray:
        original = self("rope.scaling.original_context_length", self("context_length"))
        length = "long" if original < N_CTX else "short"
        for name in ("rope_freqs.weight", f"rope_factors_{length}.weight"):
            if name in self.model.tensors:
                return self.model.tensor(name).astype(float)
        return np.ones(n)


def rotated(hparams: Hparams, layer: int, keys: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """keys [n, heads, d] -> the same at positions that differ by shifts, [n]."""
    begin = 0
    if hparams.arch in ("deepseek2", "minicpm3"):  # the rotated part comes last
        begin = keys.shape[2] - hparams("rope.dimension_count")
    angles = shifts[:, None] * hparams.frequencies(layer, keys.shape[2])
    table = np.stack([np.cos(angles), np.sin(angles)], -1)
    made = keys.astype(float)
    made[..., begin:] = rope(made[..., begin:], table, hparams.arch in NEIGHBOURS)
    return made


def stored_layers(ctx: plait.Context, n_layers: int) -> list[int]:
    found = []
    for layer in range(n_layers):
        try:
            ctx.kv.keys(layer, 0)
        except plait.UnsupportedError:
            continue
        found.append(layer)
    return found


def can_shift(ctx: plait.Context) -> bool:
    try:
        ctx.kv.seq_add(0, 0, None, 0)
    except plait.UnsupportedError:
        return False
    return True


def check(path: Path) -> int:
    """Return the number of layers compared."""
    model = plait.Model(path)
    hparams = Hparams(model)
    rng = np.random.default_rng(2)
    with plait.Context(model, n_ctx=N_CTX, type_k="f32", type_v="f32", swa_full=True) as ctx:
        feed(ctx, rng.integers(0, model.n_vocab, N).tolist(), 0)
        if not can_shift(ctx):
            return 0
        layers = stored_layers(ctx, model.n_layer)
        before = {layer: ctx.kv.keys(layer, 0).copy() for layer in layers}
        values = {layer: ctx.kv.values(layer, 0).copy() for layer in layers}
        for delta in (31, -17):
            ctx.kv.seq_add(0, FIRST, None, delta)
        ctx.kv.seq_add(0, 0, None, 3)
        shifts = np.where(np.arange(N) < FIRST, 3, 17)
        for layer in layers:
            want = before[layer]
            if hparams.rotates(layer):
                want = rotated(hparams, layer, want, shifts)
                assert np.abs(want - before[layer]).max() > 0.1
            got = ctx.kv.keys(layer, 0)
            np.testing.assert_allclose(
                got, want, atol=1e-5 * max(1.0, np.abs(want).max()), err_msg=f"layer {layer}"
            )
            np.testing.assert_array_equal(ctx.kv.values(layer, 0), values[layer])
    return len(layers)


# T5 rotates nothing, and decodes only after an encoder.
STORED = [path for path in MODELS if path.parent.name != "t5"]


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.parent.name)
def test_shifted_keys_of_stored_models(path):
    if check(path) == 0:
        pytest.skip("this memory cannot shift")


RANDOM_DECODERS = [model for model in RANDOM if not model.encoder and not model.recurrent]


@pytest.mark.parametrize("random", RANDOM_DECODERS, ids=[model.name for model in RANDOM_DECODERS])
def test_shifted_keys_of_random_models(random, tmp_path):
    assert check(random.write(tmp_path)) == random.n_layers
