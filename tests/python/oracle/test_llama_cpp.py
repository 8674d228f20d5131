"""Random models of architectures without stored logits, compared with llama.cpp: several sequences, shifts, chunks.

PLAIT_LLAMA_CPP names an interpreter that has llama-cpp-python 0.3.36:
PLAIT_LLAMA_CPP=... pytest -m oracle tests/python/oracle/test_llama_cpp.py
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import plait
import pytest
from python.oracle.random_models import MODELS, N_VOCAB, Random

PEER = os.environ.get("PLAIT_LLAMA_CPP")
pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(not PEER, reason="PLAIT_LLAMA_CPP names no interpreter"),
]
N_CTX, N_SEQS = 256, 3
# Largest error of a cache beside an F32 cache, as a share of the largest logit. An error may also be twice that of
# llama.cpp: where rounding changes the choice of an expert, both are large.
CACHE_TOLERANCES = {"f16": 5e-3, "q8_0": 0.05}


def rows(rng, sequence, begin, n, outputs="all", also=()):
    """Return n tokens of a sequence, with outputs for all or the last one."""
    tokens = rng.integers(0, N_VOCAB, n)
    return [
        [int(token), begin + i, [sequence, *also], int(outputs == "all" or i == n - 1)]
        for i, token in enumerate(tokens)
    ]


def steps_of(model: Random) -> list:
    rng = np.random.default_rng(7)
    steps = [
        ["decode", rows(rng, 0, 0, 21)],
        *(["decode", rows(rng, 0, 21 + i, 1)] for i in range(3)),
        ["decode", rows(rng, 0, 24, 13, "last")],
        ["seq_cp", 0, 1, -1, -1],
    ]
    if model.recurrent:
        # Beside a new sequence, or with parts of unequal lengths, rows of llama.cpp differ from those of the same
        # sequence alone.
        parts = [(1, 37), (0, 37)]
        return [
            *steps,
            *(
                ["decode", [row for s, begin in parts for row in rows(rng, s, begin + at, 6)]]
                for at in (0, 6)
            ),
        ]
    steps += [
        ["decode", rows(rng, 1, 37, 5) + rows(rng, 2, 0, 9) + rows(rng, 0, 37, 1)],
        ["seq_rm", 0, 30, -1],
        ["decode", rows(rng, 0, 30, 4)],
    ]
    if model.shifts:
        # llama.cpp also shifts the sequences that share cells, so the copy is removed.
        steps += [
            ["seq_rm", 1, 0, -1],
            ["seq_rm", 0, 4, 12],
            ["seq_add", 0, 12, -1, -8],
            ["decode", rows(rng, 0, 26, 10) + rows(rng, 2, 9, 7)],
        ]
    else:
        steps += [["decode", rows(rng, 0, 34, 7) + rows(rng, 1, 42, 7) + rows(rng, 2, 9, 7)]]
    return [*steps, ["decode", rows(rng, 2, 16, 40)]]


def encoder_jobs(path: Path) -> list:
    rng = np.random.default_rng(7)
    step = rows(rng, 0, 0, 23) + rows(rng, 1, 0, 9)
    return [{
        "model": str(path), "type": "f32", "n_ctx": N_CTX, "n_seq_max": N_SEQS, "embeddings": True, "pooling": 0,
        "steps": [["encode", step]],
    }]  # fmt: skip


def decoder_jobs(model: Random, path: Path) -> list:
    return [
        {"model": str(path), "type": dtype, "n_ctx": N_CTX, "n_seq_max": N_SEQS, "steps": steps_of(model)}
        for dtype in ("f32", "f16", "q8_0")
    ]  # fmt: skip


@pytest.fixture(scope="module", params=MODELS, ids=lambda model: model.name)
def played(request, tmp_path_factory):
    """A model, its jobs, and the rows that llama.cpp yields for each."""
    folder = tmp_path_factory.mktemp("llama_cpp")
    path = request.param.write(folder)
    jobs = encoder_jobs(path) if request.param.encoder else decoder_jobs(request.param, path)
    script = Path(__file__).with_name("llama_cpp_steps.py")
    found = []
    for job in jobs:
        (folder / "job.json").write_text(json.dumps([job]))
        done = subprocess.run(
            [PEER, script, folder / "job.json", folder / "rows.npz"], check=False, timeout=300
        )
        stored = np.load(folder / "rows.npz") if done.returncode == 0 else {}
        found.append({int(key.split(".")[1]): value for key, value in stored.items()})
    return request.param, jobs, found


def play(model: plait.Model, job: dict, **options) -> dict[int, np.ndarray]:
    """Return the rows of each step by plait."""
    options = {
        "n_ctx": job["n_ctx"], "n_seq_max": job["n_seq_max"], "type_k": job["type"], "type_v": job["type"],
        "swa_full": True,
    } | options  # fmt: skip
    if job.get("embeddings"):
        options |= {"embeddings": True, "pooling": ("none", "mean", "cls")[job["pooling"]]}
    found = {}
    with plait.Context(model, **options) as ctx:
        for i, (op, *arguments) in enumerate(job["steps"]):
            if op in ("decode", "encode"):
                batch = plait.Batch()
                for token, position, sequences, output in arguments[0]:
                    batch.add(token, pos=position, seq=sequences[0], logits=bool(output))
                out = getattr(ctx, op)(batch)
                found[i] = np.array(out.embeddings if job.get("embeddings") else out.logits)
            else:
                bounds = [None if value == -1 else value for value in arguments]
                if op == "seq_rm":
                    assert ctx.kv.seq_rm(*bounds)
                elif op == "seq_cp":
                    ctx.kv.seq_cp(*bounds[:2])
                else:
                    ctx.kv.seq_add(*bounds)
    return found


def error(got: dict[int, np.ndarray], want: dict[int, np.ndarray]) -> float:
    """Return the largest difference as a share of the largest value."""
    scale = max(np.abs(value).max() for value in want.values())
    return max(np.abs(got[i] - want[i]).max() for i in want) / scale


@pytest.mark.parametrize("kv", ["unified", "streams"])
def test_rows_equal_those_of_llama_cpp(played, kv):
    model, jobs, stored = played
    loaded = plait.Model(jobs[0]["model"])
    exact = stored[0]
    for job, want in zip(jobs, stored, strict=True):
        if not want and job["type"] == "q8_0":
            continue  # llama.cpp dies with some sizes of heads
        assert want, "llama.cpp refuses the model"
        got = play(loaded, job, kv=kv)
        if job["type"] == "f32":
            assert error(got, want) <= model.tolerance
            if not model.encoder:
                assert error(play(loaded, job, kv=kv, n_ubatch=7), want) <= model.tolerance
        else:  # both round keys and values, each in its own way
            assert error(got, exact) <= max(CACHE_TOLERANCES[job["type"]], 2 * error(want, exact))
