"""Measures importance matrices."""

from __future__ import annotations

import re
from contextlib import closing
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from plait._core import Batch
from plait.arguments import expect_model, integer, string
from plait.context import Context
from plait.errors import UnsupportedError
from plait.evaluation.texts import Text, token_ids
from plait.files.imatrix import ImportanceMatrix
from plait.model import Model
from plait.progress import Progress, ProgressOption, check_progress

Floats = npt.NDArray[np.float32]

# The value that each weight multiplies, by the part of its name after the layer, where the model has both.
_INPUTS = {
    "attn_q": "attn_norm", "attn_k": "attn_norm", "attn_v": "attn_norm", "attn_qkv": "attn_norm",
    "attn_q_a": "attn_norm", "attn_kv_a_mqa": "attn_norm", "attn_output": "attn_heads",
    "ffn_gate": "ffn_norm", "ffn_up": "ffn_norm", "ffn_gate_exps": "ffn_norm", "ffn_up_exps": "ffn_norm",
    "ffn_gate_shexp": "ffn_norm", "ffn_up_shexp": "ffn_norm", "ffn_down": "ffn_act", "ffn_down_exps": "ffn_act",
    "ffn_down_shexp": "ffn_act.2",
}  # fmt: skip


def importance_matrix(
    model: Model,
    text: Text,
    *,
    window: SupportsIndex | None = None,
    dataset: str = "text",
    progress: ProgressOption = None,
) -> ImportanceMatrix:
    """Measure on a text how much each input column of the model's matrices matters.

    The text is computed in windows of equal length, each from an empty cache; a shorter rest is omitted unless it is
    all there is. All experts of a layer have the statistics of all its tokens, whichever experts they were routed to.
    Matrices whose inputs are no captured value have no entry: see the result's `sums`.

    Args:
        model: The model. Its weights should be floats.
        text: Text or token ids, typically 10,000 tokens or more of the kind that the model will read.
        window: Length of a window in tokens. None: 512, or the model's training length if that is shorter.
        dataset: Name of the text, for the file.
        progress: Called with (done, total), in tokens. True shows a tqdm progress bar.

    Returns:
        The matrix. Its tensors have the names and shapes that llama-imatrix gives them.

    Raises:
        ValueError: The text has no tokens, or `window` is less than 1.
        UnsupportedError: No matrix of the model has an input that can be captured.
    """
    expect_model(model, "importance_matrix")
    check_progress(progress, "importance_matrix")
    string(dataset, "importance_matrix: dataset")
    longest = min(512, model.n_ctx_train or 512)
    size = longest if window is None else integer(window, "importance_matrix: window", 1)
    ids = token_ids(model, text, "text", True, True)
    if not ids:
        raise ValueError("importance_matrix: the text has no tokens")
    size = min(size, len(ids))
    windows = [ids[i : i + size] for i in range(0, len(ids) - size + 1, size)]
    with (
        closing(Context(model, n_ctx=size, n_batch=size)) as ctx,
        Progress(progress, size * len(windows), "token") as bar,
    ):
        inputs = _inputs(model, set(ctx.value_names()))
        squares = _squares(ctx, inputs, windows, bar)
    sums, counts = dict[str, Floats](), dict[str, Floats]()
    for name, value in inputs.items():
        total, n_rows = squares[value]
        shape = model.tensors[name].shape
        if len(total) != shape[-1]:
            continue
        n_matrices = int(np.prod(shape[:-2]))
        sums[name] = np.tile(total.astype(np.float32), (n_matrices, 1))
        counts[name] = np.full(n_matrices, n_rows, np.float32)
    return ImportanceMatrix(sums, counts, [dataset], len(windows), size)


def _inputs(model: Model, values: set[str]) -> dict[str, str]:
    """Return the value that each matrix of the model multiplies, by the name of its tensor."""
    found = dict[str, str]()
    for name, tensor in model.tensors.items():
        if len(tensor.shape) < 2 or _has_other_input(model, name):
            continue
        layer = re.fullmatch(r"(blk\.\d+)\.(\w+)\.weight", name)
        if layer and layer[2] in _INPUTS:
            value = f"{layer[1]}.{_INPUTS[layer[2]]}"
        elif name == "output.weight" or (
            name == "token_embd.weight" and "output.weight" not in model.tensors
        ):
            value = "result_norm"
        else:
            continue
        if value in values:
            found[name] = value
    if not found:
        raise UnsupportedError(
            "importance_matrix: no matrix of this model has an input that can be captured"
        )
    return found


def _has_other_input(model: Model, name: str) -> bool:
    """Return whether a matrix multiplies something else than the value in _INPUTS, which cannot be captured."""
    layer, _, part = name.removesuffix(".weight").rpartition(".")
    tensors = model.tensors
    if part == "attn_output":
        # Half of the rows of attn_q are a gate by which the heads are multiplied: Qwen3-Next, Qwen3.5.
        queries = tensors.get(f"{layer}.attn_q.weight")
        gated = queries is not None and queries.shape[0] == 2 * tensors[name].shape[1]
        return gated or f"{layer}.attn_sub_norm.weight" in tensors
    if part == "ffn_down":
        return f"{layer}.ffn_sub_norm.weight" in tensors
    # Llama 4 multiplies the input of the experts by their weights.
    return model.arch == "llama4" and part in ("ffn_gate_exps", "ffn_up_exps")


def _squares(
    ctx: Context, inputs: dict[str, str], windows: list[list[int]], progress: Progress
) -> dict[str, tuple[npt.NDArray[np.float64], int]]:
    """Return the sums of squares of the columns of each value, and the number of rows."""
    sums = dict[str, tuple[npt.NDArray[np.float64], int]]()
    names = sorted(set(inputs.values()))
    for tokens in windows:
        with ctx.sequence() as seq, ctx.capture(*names) as seen:
            batch = Batch()
            batch.add_sequence(tokens, seq=seq, logits="all")
            ctx.decode(batch)
        for name in names:
            rows = seen[name]
            rows = rows.reshape(-1, rows.shape[-1]) if rows.ndim != 3 else _flat(name, rows)
            old, n = sums.get(name, (np.zeros(rows.shape[1]), 0))
            sums[name] = (old + np.square(rows, dtype=np.float64).sum(axis=0), n + len(rows))
        progress.update(len(tokens))
    return sums


def _flat(name: str, rows: Floats) -> Floats:
    """Return (n_tokens, n_heads, n) as rows of all heads, (n_tokens, n_experts, n) as a row per expert."""
    heads_are_columns = name.endswith(".attn_heads")
    return rows.reshape(len(rows), -1) if heads_are_columns else rows.reshape(-1, rows.shape[-1])
