"""Errors are also the exceptions of Python that programs already catch."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import plait
import pytest
from python.drive import UNDER_ASAN


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda m, c: plait.Model("none.gguf"), plait.ModelError),
        (lambda m, c: m.load_lora("none.gguf"), plait.ModelError),
        (lambda m, c: plait.load_control_vector("none.gguf"), plait.ModelError),
        (lambda m, c: plait.Tokenizer.from_gguf("none.gguf"), plait.ModelError),
        (lambda m, c: c.kv.load("none.state"), plait.StateError),
        (lambda m, c: c.kv.save("none/of/these.state"), plait.StateError),
    ],
)
def test_missing_files_are_file_not_found_errors(tiny, tmp_path, monkeypatch, call, error):
    monkeypatch.chdir(tmp_path)
    with plait.Context(tiny, n_ctx=8) as ctx:
        with pytest.raises(
            FileNotFoundError, match=r"^none.*: No such file or directory$"
        ) as raised:
            call(tiny, ctx)
        assert isinstance(raised.value, error)
        assert raised.value.errno == errno.ENOENT


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/meminfo")
@pytest.mark.parametrize("options", [{"n_ctx": 2**31 - 1}, {"kv_cells": 2**31 - 1, "n_ctx": 64}])
def test_a_cache_larger_than_the_memory_is_a_memory_error(tiny, options):
    """An overcommitting system would grant it, and kill the process that fills it."""
    message = (
        r"needs \d+ MB for its cache, but \d+ MB of memory are available; choose a smaller n_ctx"
    )
    with pytest.raises(MemoryError, match=message) as raised:
        plait.Context(tiny, **options)
    assert isinstance(raised.value, plait.BackendError)


def test_generate_takes_fewer_cells_if_memory_is_short(tiny, monkeypatch):
    """The prompts then wait for each other."""
    init, asked = plait.Context.__init__, []

    def limited(self, model, *, n_ctx, kv_cells, **options):
        asked.append(kv_cells)
        if kv_cells > 100:
            raise plait.errors.OutOfMemoryError("a context needs more memory")
        init(self, model, n_ctx=n_ctx, kv_cells=kv_cells, **options)

    prompts = [[5, 6 + i] + [7] * 50 for i in range(6)]
    want = plait.complete(tiny, prompts, 8)
    monkeypatch.setattr(plait.Context, "__init__", limited)
    assert plait.complete(tiny, prompts, 8) == want
    assert asked == [6 * 60, 3 * 60, 90]
    with pytest.raises(MemoryError, match="more memory"):
        plait.complete(tiny, [[5] * 100], 8)


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
@pytest.mark.skipif(UNDER_ASAN, reason="the sanitizer reserves more address space than the limit")
def test_too_little_memory_is_a_memory_error(tiny_path):
    import resource

    with plait.Context(plait.Model(tiny_path), n_ctx=1000) as ctx:
        n_ctx = 5 * 10**9 // ctx.kv.nbytes * 1000
    pid = os.fork()
    if not pid:
        status = 1
        try:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30),) * 2)
            plait.Context(plait.Model(tiny_path), n_ctx=n_ctx)
        except MemoryError as error:
            named = "cannot allocate" in str(error) or "MB of memory are available" in str(error)
            status = 0 if isinstance(error, plait.BackendError) and named else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_call_from_an_edit_function_is_explained(tiny):
    with plait.Context(tiny, n_ctx=8, n_seq_max=2) as ctx:
        batch = plait.Batch()
        batch.add(5, logits=True)

        def change(rows):
            ctx.kv.clear()
            return rows

        with (
            ctx.edit("l_out.0", change),
            pytest.raises(ValueError, match="an edit function, a signal handler or a log handler"),
        ):
            ctx.decode(batch)


@pytest.mark.parametrize("logits", [True, False])
def test_a_bool_where_a_choice_is_meant_is_explained(logits):
    wanted = 'True; use "last" or "all"' if logits else 'False; use "none"'
    with pytest.raises(TypeError, match=f"^logits: expected .* got {wanted}$"):
        plait.Batch().add_sequence([5, 6], logits=logits)


def test_a_context_without_a_free_sequence_names_n_seq_max(tiny):
    with plait.Context(tiny, n_ctx=8) as ctx:
        held = ctx.sequence()
        with pytest.raises(plait.CacheFull, match=r"all 1 \(n_seq_max\) are in use; close one"):
            ctx.sequence()
        held.close()


@pytest.mark.parametrize("wrong", [b"ab", "ab", bytearray(b"ab")])
def test_text_is_no_list_of_tokens_or_sequences(wrong):
    for call in (
        lambda: plait.Batch().add_sequence(wrong),
        lambda: plait.Batch().add_sequence([5], seq=wrong),
        lambda: plait.Batch().add(5, seq=wrong),
        lambda: plait.Batch().add(5, pos=wrong),
        lambda: plait.Batch.from_arrays(wrong, None, None, [True]),
    ):
        with pytest.raises(TypeError, match=r"(tokens|seq|pos): expected "):
            call()
