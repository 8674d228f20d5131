"""Gradients against torch's autograd: the same tiny random model in transformers, the same derivatives in float32.

Run where transformers is installed: pytest -m oracle tests/python/oracle/test_oracle_gradients.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import plait
import pytest
from python.drive import feed, tokens
from python.inspect.gradients import close
from python.oracle.oracle import Architecture, Oracle
from python.oracle.test_oracle import ARCHITECTURES

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),  # of third-party code
]

NAMES = {
    "llama",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
    "phi3",
    "olmo2",
    "cohere2",
    "granite",
    "smollm3",
}
# What a module of transformers returns or receives -> a value of plait.
OUTPUTS = {"": "l_out", "self_attn.o_proj": "attn_out"}
INPUTS = {"self_attn.o_proj": "attn_heads", "mlp.down_proj": "ffn_act"}


@pytest.fixture(
    scope="module",
    params=[a for a in ARCHITECTURES if a.name in NAMES],
    ids=lambda a: f"{a.name}-{a.label}".rstrip("-"),
)
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    arch: Architecture = request.param
    return Oracle(arch, tmp_path_factory.mktemp("oracle") / f"{arch.name}.gguf")


def of_torch(oracle: Oracle, ids: list[int]) -> tuple[float, dict[str, np.ndarray]]:
    """Return the log-probability of token 5 after the last token, and its derivatives."""
    import torch

    kept: dict[str, Any] = {}
    hooks = []

    def keep(name: str, value: Any) -> None:
        value.retain_grad()
        kept[name] = value

    def keep_output(name: str) -> Any:
        return lambda _, __, out: keep(name, out[0] if isinstance(out, tuple) else out)

    def keep_input(name: str) -> Any:
        return lambda _, given: keep(name, given[0])

    for i, layer in enumerate(oracle.model.model.layers):
        for path, name in OUTPUTS.items():
            hook = keep_output(f"{name}.{i}")
            hooks.append(layer.get_submodule(path).register_forward_hook(hook))
        for path, name in INPUTS.items():
            hook = keep_input(f"{name}.{i}")
            hooks.append(layer.get_submodule(path).register_forward_pre_hook(hook))
    logits = oracle.model(torch.tensor([ids]), use_cache=False).logits[0, -1]
    loss = torch.log_softmax(logits, dim=-1)[5]
    loss.backward()
    for hook in hooks:
        hook.remove()
    return loss.item(), {name: value.grad[0].numpy() for name, value in kept.items()}


def test_gradients_equal_those_of_torch(oracle: Oracle) -> None:
    ids = tokens(oracle.arch.tokens)
    loss, want = of_torch(oracle, ids)
    model = plait.Model(oracle.path)
    with (
        plait.Context(model, n_ctx=64, type_k="f32", type_v="f32") as ctx,
        ctx.gradients(*want, of=plait.LogProbability(5)) as grads,
    ):
        feed(ctx, ids)
    assert grads.losses == [pytest.approx(loss, rel=1e-5, abs=1e-5)]
    for name, values in want.items():
        close(grads[name].reshape(values.shape), values)
