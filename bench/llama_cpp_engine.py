"""llama.cpp as an engine of bench/compare.py, through the low-level functions of llama-cpp-python.

This file does not import plait, so an interpreter that has only llama-cpp-python can load it.
"""

from __future__ import annotations

import ctypes
from typing import Any

_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "iq4_nl": 20,
    "bf16": 30,
}


class LlamaCpp:
    """A model on the CPU backend of llama.cpp, with the same cache, batches and threads as plait."""

    name = "llama.cpp"

    def __init__(self, path: str, options: dict[str, Any]) -> None:
        try:
            import llama_cpp
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                "this benchmark needs llama.cpp: pip install llama-cpp-python"
            ) from None
        self._llama: Any = llama_cpp
        self._options = options
        self._quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        if not self._model:
            raise OSError(f"llama.cpp cannot open {path}")
        self.n_vocab: int = llama_cpp.llama_vocab_n_tokens(
            llama_cpp.llama_model_get_vocab(self._model)
        )

    def open(self, n_seqs: int, n_ctx: int, embed: bool = False) -> None:
        """See plait.cli.bench.Plait."""
        params = self._llama.llama_context_default_params()
        options = self._options
        params.n_ctx, params.n_seq_max = n_ctx * n_seqs, n_seqs
        params.n_batch = options.get("n_batch", 2048)
        params.n_ubatch = options.get("n_ubatch", 512)
        if embed:  # llama.cpp requires all texts in one microbatch
            params.n_batch = params.n_ubatch = max(params.n_batch, n_ctx * n_seqs)
        params.n_threads = params.n_threads_batch = options["threads"]
        params.kv_unified = options.get("kv", "unified") == "unified"
        params.embeddings = embed
        params.type_k = self._type(options.get("type_k", "f16"))
        params.type_v = self._type(options.get("type_v", "f16"))
        if "q" in options.get("type_v", ""):
            params.flash_attn_type = 1  # quantised values require it
        self._ctx = self._llama.llama_init_from_model(self._model, params)
        if not self._ctx:
            raise ValueError("llama.cpp cannot make such a context")
        self._batch = self._llama.llama_batch_init(params.n_batch, 0, 1)
        self._n_batch = params.n_batch
        self._held = 0

    @staticmethod
    def _type(name: str) -> int:
        if name not in _TYPES:
            raise ValueError(f'llama.cpp: this benchmark does not support the cache type "{name}"')
        return _TYPES[name]

    def read(self, tokens: list[list[int]]) -> None:
        """See plait.cli.bench.Plait."""
        step = max(1, self._n_batch // len(tokens))
        for begin in range(0, len(tokens[0]), step):
            parts = [own[begin : begin + step] for own in tokens]
            self._decode(parts, all_wanted=False)
            self._llama.llama_get_logits_ith(self._ctx, -1)[0]
            self._held += len(parts[0])

    def embed(self, texts: list[list[int]]) -> None:
        """See plait.cli.bench.Plait."""
        self._decode(texts, all_wanted=True)
        self._llama.llama_get_embeddings_seq(self._ctx, len(texts) - 1)[0]

    def _decode(self, parts: list[list[int]], *, all_wanted: bool) -> None:
        batch, n = self._batch, 0
        for seq, part in enumerate(parts):
            for i, token in enumerate(part):
                batch.token[n], batch.pos[n] = token, self._held + i
                batch.n_seq_id[n], batch.seq_id[n][0] = 1, seq
                batch.logits[n] = all_wanted or i + 1 == len(part)
                n += 1
        batch.n_tokens = n
        if self._llama.llama_decode(self._ctx, batch):
            raise ValueError("llama.cpp cannot decode this batch")

    def save(self, path: str) -> None:
        """See plait.cli.bench.Plait."""
        if not self._llama.llama_state_seq_save_file(self._ctx, path.encode(), 0, None, 0):
            raise OSError(f"llama.cpp cannot save {path}")

    def load(self, path: str, n_seqs: int) -> None:
        """See plait.cli.bench.Plait."""
        none, n = (ctypes.c_int32 * 1)(), ctypes.c_size_t()
        for seq in range(n_seqs):
            if not self._llama.llama_state_seq_load_file(
                self._ctx, path.encode(), seq, none, 1, ctypes.byref(n)
            ):
                raise OSError(f"llama.cpp cannot load {path}")
        memory = self._llama.llama_get_memory(self._ctx)
        self._held = self._llama.llama_memory_seq_pos_max(memory, 0) + 1

    def close(self) -> None:
        """See plait.cli.bench.Plait."""
        self._llama.llama_batch_free(self._batch)
        self._llama.llama_free(self._ctx)

    def logits(self, texts: list[list[int]]) -> Any:
        """Return the logits of all tokens of each text, as a list of float32 (n_tokens, n_vocab)."""
        import numpy as np

        found = []
        for tokens in texts:
            self.open(1, len(tokens))
            self._decode([tokens], all_wanted=True)
            rows = self._llama.llama_get_logits(self._ctx)
            shape = (len(tokens), self.n_vocab)
            found.append(np.ctypeslib.as_array(rows, shape).copy())
            self.close()
        return found


_FILE_TYPES = {
    "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K": 11, "Q4_K": 14, "Q5_K": 16, "Q6_K": 18,
    "IQ4_NL": 25, "IQ4_XS": 30,
}  # fmt: skip
_TENSOR_TYPES = {
    "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14,
    "IQ4_NL": 20, "IQ4_XS": 23,
}  # fmt: skip


def quantize(source: str, target: str, dtype: str) -> None:
    """Write a file with all matrices in one type, without an importance matrix."""
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = _FILE_TYPES[dtype]
    params.pure = True
    params.output_tensor_type = params.token_embedding_type = _TENSOR_TYPES[dtype]
    if llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)):
        raise OSError(f"llama.cpp cannot quantise {source} to {dtype}")


def main() -> None:
    """Write the logits of texts, or a quantised file.

    llama_cpp_engine.py MODEL TEXTS.json OPTIONS OUT.npz
    llama_cpp_engine.py --quantize MODEL OUT.gguf TYPE
    """
    import json
    import sys

    import numpy as np

    if sys.argv[1] == "--quantize":
        quantize(*sys.argv[2:])
        return
    model, texts, options, out = sys.argv[1:]
    engine = LlamaCpp(model, json.loads(options))
    with open(texts) as file:
        found = engine.logits(json.load(file))
    np.savez(out, **{str(i): rows for i, rows in enumerate(found)})


if __name__ == "__main__":
    main()
