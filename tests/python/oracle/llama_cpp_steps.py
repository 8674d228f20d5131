"""Play steps on models with llama.cpp: python llama_cpp_steps.py jobs.json outputs.npz

Run by an interpreter that has llama-cpp-python. Each job is a model, the arguments of its context, and steps: batches
of [token, position, sequences, whether there is an output], and operations on the cache. The rows that each batch
yields, logits or embeddings, are stored as "job.step". A model or context that llama.cpp refuses yields none.
"""

import ctypes
import json
import sys

import llama_cpp as llama
import numpy as np

TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}

QUIET = llama.llama_log_callback(lambda *_: None)


def rows(ctx, job, outputs, width):
    """Return the outputs of the last batch, [n, width]."""
    if not job.get("embeddings"):
        values = [llama.llama_get_logits_ith(ctx, i) for i in outputs]
    elif job.get("pooling", 0) == 0:
        values = [llama.llama_get_embeddings_ith(ctx, i) for i in outputs]
    else:
        values = [llama.llama_get_embeddings_seq(ctx, s) for s in job["sequences"]]
    return np.stack([np.ctypeslib.as_array(value, (width,)).copy() for value in values])


def decode(ctx, step, encode):
    batch = llama.llama_batch_init(len(step), 0, 8)
    batch.n_tokens = len(step)
    for i, (token, position, sequences, output) in enumerate(step):
        batch.token[i], batch.pos[i], batch.logits[i] = token, position, output
        batch.n_seq_id[i] = len(sequences)
        for j, sequence in enumerate(sequences):
            batch.seq_id[i][j] = sequence
    code = (llama.llama_encode if encode else llama.llama_decode)(ctx, batch)
    llama.llama_batch_free(batch)
    if code:
        raise RuntimeError(f"decode: {code}")


def play(job, model, found, name):
    params = llama.llama_context_default_params()
    params.n_ctx = job["n_ctx"]
    params.n_seq_max = job["n_seq_max"]
    params.n_batch = params.n_ubatch = job.get("n_ubatch", 512)
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = TYPES[job["type"]]
    params.flash_attn_type = int(job["type"].startswith("q"))
    params.kv_unified = True
    params.swa_full = True
    params.embeddings = bool(job.get("embeddings"))
    if params.embeddings:
        params.pooling_type = job["pooling"]
    ctx = llama.llama_init_from_model(model, params)
    if not ctx:
        return
    vocabulary = llama.llama_model_get_vocab(model)
    width = (
        llama.llama_model_n_embd(model)
        if params.embeddings
        else llama.llama_vocab_n_tokens(vocabulary)
    )
    memory = llama.llama_get_memory(ctx)
    for i, (op, *arguments) in enumerate(job["steps"]):
        if op in ("decode", "encode"):
            decode(ctx, *arguments, op == "encode")
            outputs = [j for j, token in enumerate(arguments[0]) if token[3]]
            found[f"{name}.{i}"] = rows(ctx, job, outputs, width)
        else:
            getattr(llama, f"llama_memory_{op}")(memory, *arguments)
    llama.llama_free(ctx)


def start():
    """Initialise llama.cpp, which is silent unless --verbose is given."""
    if "--verbose" not in sys.argv:
        llama.llama_log_set(QUIET, ctypes.c_void_p(0))
    llama.llama_backend_init()


def main(jobs_path, outputs_path):
    start()
    with open(jobs_path) as file:
        jobs = json.load(file)
    found = {}
    for n, job in enumerate(jobs):
        params = llama.llama_model_default_params()
        params.n_gpu_layers = 0
        model = llama.llama_model_load_from_file(job["model"].encode(), params)
        if not model:
            continue
        play(job, model, found, str(n))
        llama.llama_model_free(model)
    np.savez(outputs_path, **found)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
