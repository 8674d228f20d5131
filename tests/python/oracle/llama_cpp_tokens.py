"""Tokenize texts with llama.cpp: python llama_cpp_tokens.py jobs.json ids.json

Run by an interpreter that has llama-cpp-python. The jobs are {"texts": [...], "files": [...]}; the files are GGUF
files, which may lack weights. The result is a list per file, which holds a list of token ids per text, and then the ids
of the first text with the special tokens around it.
"""

import ctypes
import json
import sys

import llama_cpp as llama
from llama_cpp_steps import start


def ids_of(vocabulary, text, add_special):
    data = text.encode()
    room = 4 * len(data) + 16
    ids = (ctypes.c_int32 * room)()
    n = llama.llama_tokenize(vocabulary, data, len(data), ids, room, add_special, False)
    return list(ids[:n])


def main(jobs_path, ids_path):
    start()
    with open(jobs_path, encoding="utf-8") as file:
        jobs = json.load(file)
    params = llama.llama_model_default_params()
    params.vocab_only = True
    found = []
    for path in jobs["files"]:
        model = llama.llama_model_load_from_file(path.encode(), params)
        vocabulary = llama.llama_model_get_vocab(model)
        found.append([ids_of(vocabulary, text, False) for text in jobs["texts"]])
        found[-1].append(ids_of(vocabulary, jobs["texts"][0], True))
        llama.llama_model_free(model)
    with open(ids_path, "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
