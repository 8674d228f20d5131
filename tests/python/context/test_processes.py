"""Forks and process pools: children compute the same results as their parent, and none hangs. Goal G14, rule A5."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import plait
import pytest

FORKS = textwrap.dedent("""
    import os, signal, sys, plait
    model = plait.Model(sys.argv[1])
    ctx = plait.Context(model, n_ctx=64, n_seq_max=2, threads=2)
    others = [plait.Context(model, n_ctx=64, threads=2) for _ in range(3)]
    def step(seq):
        ctx.kv.seq_rm(seq)
        batch = plait.Batch()
        batch.add_sequence([5, 6, 7, 8], seq=seq)
        return ctx.decode(batch).logits.tobytes()
    want = step(0)
    def all_of_them():
        batch = plait.Batch()
        batch.add_sequence([5, 6, 7, 8], seq=0)
        for other in others:
            other.kv.clear()
            if other.decode(batch).logits.tobytes() != want:
                return False
        return True
    assert all_of_them()
    for i in range(int(sys.argv[2])):
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            good = step(1) == want and all_of_them()
            others.clear()
            if i % 3 == 0:  # a context of its own, and a child of the child
                ctx = plait.Context(model, n_ctx=64, n_seq_max=2, threads=2)
                grandchild = os.fork()
                good = good and step(1) == want
                if grandchild != 0:
                    good = good and os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]) == 0
            os._exit(0 if good else 1)
        assert step(0) == want  # while the child decodes
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, i
""")


def fork(path: os.PathLike[str], n: int) -> None:
    subprocess.run(
        [sys.executable, "-W", "error", "-c", FORKS, path, str(n)], check=True, timeout=600
    )


def test_forked_children_decode(tiny_path):  # G14
    fork(tiny_path, 12)


@pytest.mark.slow
@pytest.mark.goal("G14")
def test_fifty_forked_children_decode(tiny_path, record_property):  # G14
    fork(tiny_path, 50)
    record_property("figure", "50 forks, 17 of them twice: 0 hangs, same logits")


def logits(path: str) -> bytes:
    """What a worker of a pool says."""
    batch = plait.Batch()
    batch.add_sequence([5, 6, 7, 8])
    with plait.Context(plait.Model(path), n_ctx=64, threads=2) as ctx:
        return ctx.decode(batch).logits.tobytes()


POOL = textwrap.dedent("""
    import multiprocessing, sys
    sys.path.insert(0, sys.argv[1])
    from python.context.test_processes import logits
    if __name__ == "__main__":
        want = logits(sys.argv[2])
        with multiprocessing.get_context(sys.argv[3]).Pool(2) as pool:
            assert pool.map_async(logits, [sys.argv[2]] * 4).get(60) == [want] * 4
""")


@pytest.mark.goal("G14")
@pytest.mark.parametrize("how", multiprocessing.get_all_start_methods())
def test_a_pool_of_processes_decodes(tiny_path, tmp_path, how, record_property):  # G14
    script = tmp_path / "pool.py"
    script.write_text(POOL)
    tests = Path(__file__).parents[2]
    subprocess.run([sys.executable, script, tests, tiny_path, how], check=True, timeout=120)
    record_property("figure", f"Pool by {how}")
