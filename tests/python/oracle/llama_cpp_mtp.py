"""Run the layer for multi-token prediction with llama.cpp: python llama_cpp_mtp.py model.gguf tokens outputs.npz

Run by an interpreter that has llama-cpp-python 0.3.36. `tokens` are numbers with commas. Stores the hidden states of
the model, and the logits and hidden states of the layer, which reads each state with the token after it.
"""

import ctypes
import sys

import llama_cpp as llama
import numpy as np
from llama_cpp_steps import start

# Functions that llama-cpp-python does not wrap, and which have C++ names.
LIBRARY = llama.llama_cpp._lib
give_states = LIBRARY._Z26llama_set_embeddings_nextnP13llama_contextbb
give_states.restype = None
give_states.argtypes = (ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool)
states_of = LIBRARY._Z26llama_get_embeddings_nextnP13llama_context
states_of.restype = ctypes.POINTER(ctypes.c_float)
states_of.argtypes = (ctypes.c_void_p,)
DEFAULT, MTP = 0, 1  # llama_context_type


def context(model, kind):
    params = llama.llama_context_default_params()
    params.n_ctx, params.ctx_type = 64, kind
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = params.flash_attn_type = 0
    ctx = llama.llama_init_from_model(model, params)
    give_states(ctx, True, False)
    return ctx


def decode(ctx, tokens, width, states=None):
    """Return the hidden states of tokens, which begin at position 0."""
    n = len(tokens)
    batch = llama.llama_batch_init(n, 0, 1)
    batch.n_tokens = n
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.logits[i] = token, i, 1
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
    if states is not None:
        batch.embd = states.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    if code := llama.llama_decode(ctx, batch):
        raise RuntimeError(f"decode: {code}")
    batch.embd = None
    llama.llama_batch_free(batch)
    return np.ctypeslib.as_array(states_of(ctx), (n, width)).copy()


def main(path, numbers, outputs):
    start()
    tokens = [int(number) for number in numbers.split(",")]
    params = llama.llama_model_default_params()
    params.n_gpu_layers, params.load_mtp = 0, True
    model = llama.llama_model_load_from_file(path.encode(), params)
    width = llama.llama_model_n_embd(model)
    n_vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    hidden = decode(context(model, DEFAULT), tokens, width)
    layer = context(model, MTP)
    states = decode(layer, tokens[1:], width, np.ascontiguousarray(hidden[:-1]))
    logits = [
        np.ctypeslib.as_array(llama.llama_get_logits_ith(layer, i), (n_vocab,)).copy()
        for i in range(len(tokens) - 1)
    ]
    np.savez(outputs, hidden=hidden, states=states, logits=np.stack(logits))


if __name__ == "__main__":
    main(*sys.argv[1:4])
