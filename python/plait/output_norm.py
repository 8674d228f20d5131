"""The norm after the last layer of a model, in NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from plait.model import Model

Rows = npt.NDArray[np.float32]


# Files of these architectures state the epsilon of RMSNorm under the name of that of LayerNorm.
RMS_ARCHITECTURES = ("nemotron_h", "nemotron_h_moe")


class OutputNorm:
    """The norm after the last layer: RMSNorm or LayerNorm, as the file's hyperparameters tell.

    Args:
        model: A model that has the tensor output_norm.weight.
    """

    def __init__(self, model: Model) -> None:
        self._weight = model.tensor("output_norm.weight")
        self._bias = None
        if "output_norm.bias" in model.tensors:
            self._bias = model.tensor("output_norm.bias")
        prefix = f"{model.arch}.attention.layer_norm"
        rms = model.metadata.get(f"{prefix}_rms_epsilon")
        epsilon = model.metadata.get(f"{prefix}_epsilon", 1e-5) if rms is None else rms
        self._epsilon = float(epsilon)
        self._centres = rms is None and model.arch not in RMS_ARCHITECTURES

    def __call__(self, rows: Rows) -> Rows:
        """Return the normalised rows.

        Args:
            rows: float32 (n, n_embd).
        """
        if self._centres:
            rows = rows - rows.mean(axis=1, keepdims=True)
        scale = np.sqrt((rows**2).mean(axis=1, keepdims=True) + self._epsilon)
        normal: Rows = rows / scale * self._weight
        return normal if self._bias is None else normal + self._bias
