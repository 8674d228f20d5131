"""Run cases of bench/engines.py with an engine that reads models in the layout of transformers.

    engine.py ENGINE FOLDER CASE... [--threads N]

prints the throughput of each case in tokens/s, as JSON. ENGINE is transformers, openvino or vllm; the interpreter must
have it. weights.py writes the folder.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engines import Case, figure

N_BATCH, N_CTX = 2048, 4096


class Transformers:
    """Transformers on PyTorch, with its fused attention. See plait.cli.bench.Plait for the methods."""

    def __init__(self, folder: Path, threads: int) -> None:
        import torch
        import transformers

        torch.set_num_threads(threads)
        self._torch, self._cache_type = torch, transformers.DynamicCache
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype="auto", attn_implementation="sdpa"
        ).eval()
        self.n_vocab: int = self._model.config.vocab_size

    def open(self, n_seqs: int, n_ctx: int, embed: bool = False) -> None:
        self._cache = self._cache_type()

    def read(self, tokens: list[list[int]]) -> None:
        with self._torch.inference_mode():
            self._model(
                input_ids=self._torch.tensor(tokens),
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=1,
            )

    def close(self) -> None:
        del self._cache


class OpenVino:
    """OpenVINO's CPU plugin, with the model as optimum-intel exports it: the cache is a state of the request."""

    def __init__(self, folder: Path, threads: int) -> None:
        import openvino

        core = openvino.Core()
        model = core.read_model(folder / "openvino_model.xml")
        _keep_last_logits(model)
        options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
        self._request = core.compile_model(model, "CPU", options).create_infer_request()
        self._names = {given.get_any_name() for given in model.inputs}
        self.n_vocab: int = json.loads((folder / "config.json").read_text())["vocab_size"]

    def open(self, n_seqs: int, n_ctx: int, embed: bool = False) -> None:
        self._request.reset_state()
        self._held = 0

    def read(self, tokens: list[list[int]]) -> None:
        ids = np.array(tokens, np.int64)
        n_seqs, n = ids.shape
        given = {
            "input_ids": ids,
            "attention_mask": np.ones((n_seqs, self._held + n), np.int64),
            "position_ids": np.tile(np.arange(self._held, self._held + n), (n_seqs, 1)),
            "beam_idx": np.arange(n_seqs, dtype=np.int32),
        }
        self._request.infer({name: given[name] for name in self._names}, share_inputs=True)
        self._held += n

    def close(self) -> None:
        self._request.reset_state()


def _keep_last_logits(model: Any) -> None:
    """Compute the logits of the last position only, as OpenVINO GenAI does."""
    from openvino import opset13 as ops

    node = model.outputs[0].get_node()
    while node.get_type_name() != "MatMul":
        node = node.input_value(0).get_node()
    last = ops.gather(node.input_value(0), np.array([-1], np.int64), np.int64(1))
    node.input(0).replace_source_output(last.output(0))


class Vllm:
    """vLLM, driven step by step in this process. It computes the tokens of the steps itself."""

    def __init__(self, folder: Path, threads: int) -> None:
        os.environ |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
            "VLLM_LOGGING_LEVEL": "ERROR",
        }
        import vllm

        self._params = vllm.SamplingParams(
            temperature=0, max_tokens=N_CTX, ignore_eos=True, detokenize=False
        )
        self._engine = vllm.LLM(
            str(folder),
            skip_tokenizer_init=True,
            max_model_len=N_CTX,
            max_num_batched_tokens=N_BATCH,
            enable_prefix_caching=False,
        ).llm_engine
        self.n_vocab: int = json.loads((folder / "config.json").read_text())["vocab_size"]
        self._n_opened = 0

    def open(self, n_seqs: int, n_ctx: int, embed: bool = False) -> None:
        self._counts: dict[str, int] = {}
        self._n_opened += 1

    def read(self, tokens: list[list[int]]) -> None:
        if not self._counts:
            for i, own in enumerate(tokens):
                name = f"{self._n_opened}-{i}"
                self._engine.add_request(name, {"prompt_token_ids": own}, self._params)
                self._counts[name] = 0
        wanted = 1 + min(self._counts.values())
        while min(self._counts.values()) < wanted:
            for output in self._engine.step():
                self._counts[output.request_id] = len(output.outputs[0].token_ids)

    def close(self) -> None:
        self._engine.abort_request(list(self._counts))
        while self._engine.has_unfinished_requests():
            self._engine.step()


ENGINES = {"transformers": Transformers, "openvino": OpenVino, "vllm": Vllm}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("cases", type=Case.parse, nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    opened = ENGINES[args.engine](args.folder, args.threads)
    print(json.dumps([figure(opened, case) for case in args.cases]))
