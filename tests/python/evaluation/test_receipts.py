"""Receipts: what is recorded can be computed again, in other contexts and processes, and nothing else passes for it."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import plait
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plait.inspect.receipt import _checksum
from plait.inspect.recorder import Recorder
from python.drive import batch, feed, tokens

from python import lora_models

DIGEST = re.compile(r"\b[0-9a-f]{64}\b")


def context(model: plait.Model, **options: Any) -> plait.Context:
    return plait.Context(model, **{"n_ctx": 96, "n_seq_max": 4, **options})


def saved(receipt: plait.Receipt, folder: Path) -> Path:
    path = folder / "run.json"
    receipt.save(path)
    return path


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change the content of a receipt and give it the right checksum."""
    content = json.loads(path.read_text())
    change(content)
    content["sha256"] = _checksum(content)
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def run(tiny: plait.Model, tmp_path: Path) -> Path:
    """A receipt of three calls of decode() and a fork."""
    with context(tiny) as ctx, ctx.record() as receipt:
        feed(ctx, tokens(9))
        ctx.kv.seq_cp(0, 1)
        feed(ctx, tokens(3, seed=1), seq=1)
        feed(ctx, tokens(2, seed=2))
    return saved(receipt, tmp_path)


def test_the_file_states_what_the_call_got_and_gave(tiny: plait.Model, tmp_path: Path) -> None:
    ids = tokens(9)
    with context(tiny, embeddings=True, pooling="none") as ctx, ctx.record() as receipt:
        made = plait.Batch()
        made.add_sequence(ids, seq=[0, 2], logits="all")
        made.add(7, pos=9, seq=2, logits=True)
        out = ctx.decode(made)
        expected = hashlib.sha256(out.logits.tobytes() + out.embeddings.tobytes()).hexdigest()
    content = json.loads(saved(receipt, tmp_path).read_text())
    (call,) = content["calls"]
    entries = call["args"]["batch"]["batch"]
    assert call["call"] == "decode"
    assert entries["tokens"] == [*ids, 7]
    assert entries["sequences"] == [[0, 2]] * 9 + [[2]]
    assert entries["positions"] == [-1] * 9 + [9]
    assert entries["outputs"] == list(range(10))
    assert call["sha256"] == expected
    (file,) = content["model"]["files"]
    assert file["sha256"] == hashlib.sha256(Path(tiny.path).read_bytes()).hexdigest()
    assert content["isa"] == ctx.isa == plait.build_info()["isas"][-1]
    assert content["options"]["n_ctx"] == 96
    assert content["options"]["pooling"] == "none"
    assert receipt.n_tokens == 10
    assert len(receipt) == 1
    assert "1 calls with 10 tokens" in repr(plait.verify(tmp_path / "run.json", tiny))


def test_another_process_verifies_it(tiny_path: Path, run: Path) -> None:
    code = "import plait, sys; print(len(plait.verify(sys.argv[1], plait.Model(sys.argv[2]))))"
    done = subprocess.run(
        [sys.executable, "-c", code, run, tiny_path], capture_output=True, text=True, check=True
    )
    assert done.stdout == "4\n"


def test_every_kind_of_call_is_computed_again(tiny: plait.Model, tmp_path: Path) -> None:
    with context(tiny) as other, context(tiny) as third, context(tiny) as ctx:
        feed(other, tokens(5, seed=4), seq=1)
        with ctx.record() as receipt:
            feed(ctx, tokens(30))
            ctx.kv.seq_cp(0, 1, 0, 20)
            ctx.kv.seq_rm(0, 25)
            ctx.kv.evict(0, [3, 4, 9])
            ctx.kv.seq_add(0, 10, None, -2)
            ctx.kv.seq_div(1, 0, None, 2)
            feed(ctx, tokens(2, seed=1), seq=1)
            ctx.kv.seq_rewind(1, 12)
            ctx.kv.defrag()
            ctx.kv.save(tmp_path / "state", seq=0)
            ctx.kv.load(tmp_path / "state", seq=2)
            ctx.kv.from_bytes(ctx.kv.to_bytes(2), seq=1)
            ctx.kv.copy_to(third)
            ctx.kv.seq_keep(1)
            feed(ctx, tokens(2, seed=2), seq=1)
            other.kv.copy_to(ctx)
            feed(ctx, tokens(2, seed=3), seq=1)
            ctx.encode(batch((tokens(4), 0), logits="all"))
            rows = np.random.default_rng(1).normal(size=(3, tiny.n_embd)).astype(np.float32)
            made = plait.Batch()
            made.add_embeddings(rows, seq=3, logits="all")
            ctx.decode(made)
            ctx.decode(
                plait.Batch.from_arrays(
                    np.array([5, 6, 7], np.int32),
                    None,
                    [[0, 2], [2, -1], [3, -1]],
                    np.ones(3, bool),
                )
            )
            ctx.kv.clear()
    names = {call["call"] for call in receipt.calls}
    assert names == {
        "decode", "encode", "kv.clear", "kv.defrag", "kv.from_bytes", "kv.seq_add", "kv.seq_cp", "kv.seq_div",
        "kv.seq_keep", "kv.seq_rewind", "kv.seq_rm", "kv.to_bytes",
    }  # fmt: skip
    assert receipt.problem is None
    plait.verify(saved(receipt, tmp_path), tiny)


def test_handles_are_opened_and_closed_again(tiny: plait.Model, tmp_path: Path) -> None:
    """Also handles from before the recording, and handles that nobody closes."""
    with context(tiny) as ctx:
        before, dropped = ctx.sequence(), ctx.sequence()
        feed(ctx, tokens(3), seq=dropped)
        feed(ctx, tokens(7), seq=before)
        with ctx.record() as receipt:
            fork = before.fork(5)
            feed(ctx, tokens(2), seq=fork)
            fork.truncate(6)
            fork.shift(1, 2)
            feed(ctx, tokens(2, seed=1), seq=fork)
            del dropped, fork
            gc.collect()
            with ctx.sequence() as seq:
                feed(ctx, tokens(2, seed=2), seq=seq)
            before.close()
            again = ctx.sequence()
            assert again.id == 0
            feed(ctx, tokens(2, seed=3), seq=again)
    assert [call["args"]["sequence"] for call in receipt.calls if call["call"] == "close"] == [
        1, 2, 0, 1,
    ]  # fmt: skip
    assert json.loads(saved(receipt, tmp_path).read_text())["sequences"] == [0, 1]
    plait.verify(tmp_path / "run.json", tiny)


def test_edits_are_applied_again(tiny: plait.Model, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    direction = rng.normal(size=tiny.n_embd).astype(np.float32)
    rows = rng.normal(size=(3, tiny.n_embd)).astype(np.float32)
    with context(tiny) as ctx, ctx.sequence() as seq, ctx.edit("l_out.0", direction, positions=[1]):
        feed(ctx, tokens(3), seq=1)
        with ctx.record() as receipt:
            with (
                ctx.edit("l_out.1", rows, "replace", seq=[seq, 2], positions=range(1, 4)),
                ctx.edit("l_out.1", 0.5, "scale", seq=seq, positions=slice(2, None)),
            ):
                feed(ctx, tokens(6), seq=seq)
                direction[:] = 0  # changes no open edit
                feed(ctx, tokens(6), seq=2)
            feed(ctx, tokens(2), seq=seq)
    names = [call["call"] for call in receipt.calls]
    assert names == [
        "kv.from_bytes", "edit", "edit", "edit", "decode", "decode", "end_edit", "end_edit", "decode",
    ]  # fmt: skip
    path = saved(receipt, tmp_path)
    plait.verify(path, tiny)

    def without_edits(content: dict[str, Any]) -> None:
        content["calls"] = [call for call in content["calls"] if "edit" not in call["call"]]

    with pytest.raises(plait.VerificationError) as caught:
        plait.verify(changed(path, without_edits), tiny)
    assert caught.value.call == 1


def test_adapters_and_control_vectors_are_set_again(tmp_path: Path) -> None:
    metadata, weights = lora_models.model("llama")
    from python import gguf_writer

    model = plait.Model(gguf_writer.write(tmp_path / "model.gguf", metadata, weights))
    files = []
    for seed in (1, 2):
        deltas = lora_models.deltas(weights, ["blk.0.attn_q.weight"], 2, seed)
        files.append(lora_models.write_adapter(tmp_path / f"{seed}.gguf", "llama", deltas))
    first, second = map(model.load_lora, files)
    vector = np.random.default_rng(1).normal(size=(2, model.n_embd)).astype(np.float32)
    with context(model) as ctx:
        ctx.set_lora({first: 0.5})
        ctx.set_control_vector(vector)
        vector[:] = 0
        with ctx.record() as receipt:
            feed(ctx, tokens(5))
            ctx.set_lora({second: 1.0, first: 2.0}, seq=[1])
            ctx.set_control_vector(vector + 1, first_layer=0, seq=1)
            ctx.decode(batch((tokens(4), 1), (tokens(3), 2)))
            ctx.set_lora(None)
            ctx.set_control_vector(None)
            feed(ctx, tokens(5))
        assert receipt.problem is None
        path = saved(receipt, tmp_path)
        plait.verify(path, model)
        ctx.set_lora({first: 1}, seq=2)
        with pytest.raises(plait.UnsupportedError, match=r"set_lora\(\.\.\., seq=\.\.\.\) inside"):
            ctx.record().__enter__()
        assert ctx._recorder is None
        ctx.set_lora(None)
        with ctx.record():
            pass
    moved = files[0].rename(tmp_path / "moved.gguf")
    with pytest.raises(plait.ReceiptError, match=r"load it with model\.load_lora"):
        plait.verify(path, model)
    plait.verify(path, model, adapters=[model.load_lora(moved)])
    moved.with_name("1.gguf").write_bytes(files[1].read_bytes())  # of the same size
    with pytest.raises(plait.ReceiptError, match="adapter"):
        plait.verify(path, model)


def test_adapters_are_loaded_again_in_their_order(tmp_path: Path) -> None:
    """Their products are summed in the order in which they were loaded, not in that of their use."""
    metadata, weights = lora_models.model("llama")
    from python import gguf_writer

    model = plait.Model(gguf_writer.write(tmp_path / "model.gguf", metadata, weights))
    every = lora_models.matrices(weights)
    files = [
        lora_models.write_adapter(
            tmp_path / f"{seed}.gguf", "llama", lora_models.deltas(weights, every, 4, seed)
        )
        for seed in (1, 2)
    ]
    first, second = map(model.load_lora, files)
    twin = model.load_lora(files[0])
    with context(model) as ctx, ctx.record() as receipt:
        ctx.set_lora({second: 1.0, first: 0.7}, seq={1, 2})
        ctx.set_lora({twin: 0.1, second: 1.0, first: 0.7}, seq=3)
        feed(ctx, tokens(9), seq=1)
        feed(ctx, tokens(9), seq=3)
    assert receipt.problem is None
    plait.verify(receipt, model)
    plait.verify(receipt, model, adapters=[model.load_lora(files[0])])
    assert [Path(facts["path"]).name for facts in receipt.adapters] == [
        "2.gguf",
        "1.gguf",
        "1.gguf",
    ]


def test_transactions_are_undone_again(tiny: plait.Model, tmp_path: Path) -> None:
    with context(tiny) as plain:
        ctx: Any = plain
        before = ctx.sequence()
        with ctx.record() as receipt:
            feed(ctx, tokens(5), seq=before)
            with contextlib.suppress(KeyError), ctx.transaction():
                fork = before.fork()
                feed(ctx, tokens(3, seed=1), seq=fork)
                before.close()
                with ctx.transaction() as inner:
                    ctx.kv.clear()
                    inner.rollback()
                    assert not inner.open
                feed(ctx, tokens(3, seed=2), seq=fork)
                raise KeyError
            assert fork.closed
            assert not before.closed
            feed(ctx, tokens(2, seed=3), seq=before)
            with ctx.transaction():
                before.close()
                again = ctx.sequence()
                feed(ctx, tokens(2, seed=4), seq=again)
            feed(ctx, tokens(2, seed=5), seq=again)
        assert receipt.problem is None
        assert [c["call"] for c in receipt.calls if c["call"] in ("transaction", "commit", "rollback")] == [
            "transaction", "transaction", "rollback", "rollback", "transaction", "commit",
        ]  # fmt: skip
        plait.verify(saved(receipt, tmp_path), tiny)
        with ctx.transaction(), pytest.raises(plait.UnsupportedError, match="transaction is open"):
            ctx.record().__enter__()


def test_a_transaction_of_before_is_not_recorded(tiny: plait.Model) -> None:
    with context(tiny) as plain:
        ctx: Any = plain
        before = ctx.transaction()
        with ctx.record():
            earlier = ctx.transaction()
        for transaction in (before, earlier):
            ctx.kv.clear()
            with ctx.record() as receipt:
                feed(ctx, tokens(5))
                with ctx.transaction():
                    feed(ctx, tokens(1))
                assert receipt.problem is None
                with transaction:
                    feed(ctx, tokens(2))
                    transaction.rollback()
            assert receipt.problem == (
                "call 4: a transaction that was created before the recording is open"
            )


def test_an_unrecorded_rollback_inside_a_recorded_transaction_is_a_problem(
    tiny: plait.Model,
) -> None:
    with context(tiny) as plain:
        ctx: Any = plain
        before = ctx.transaction()
        with ctx.record():
            earlier = ctx.transaction()
        for transaction in (before, earlier):
            ctx.kv.clear()
            with ctx.record() as receipt, ctx.transaction():
                feed(ctx, tokens(5))
                with transaction:
                    feed(ctx, tokens(2))
                    transaction.rollback()
                feed(ctx, tokens(3))
            assert receipt.problem is not None
            assert (
                "call 3: the sequences were replaced by a call that is not recorded"
                in receipt.problem
            )


@pytest.mark.parametrize("depth", [1, 2])
def test_a_transaction_that_is_deleted_while_open_is_undone_again(
    tiny: plait.Model, tmp_path: Path, depth: int
) -> None:
    """Its rollback also reopens and closes sequences, and ends the transactions inside of it."""
    with context(tiny) as plain:
        ctx: Any = plain
        kept, closed = ctx.sequence(), ctx.sequence()
        with ctx.record() as receipt:
            feed(ctx, tokens(5), seq=kept)
            feed(ctx, tokens(4), seq=closed)
            transactions = [ctx.transaction() for _ in range(depth)]
            for transaction in transactions:
                transaction.__enter__()
                feed(ctx, tokens(3, seed=1), seq=kept)
            opened = ctx.sequence()
            kept.close()
            closed.close()
            del closed, transaction
            inner = transactions[1:]
            del transactions
            gc.collect()
            assert opened.closed
            assert (kept.pos, kept.closed) == (5, False)
            feed(ctx, tokens(2, seed=2), seq=kept)
            for transaction in inner:
                with pytest.raises(ValueError, match="outer transaction ended"):
                    transaction.__exit__(None, None, None)
            with ctx.transaction():
                feed(ctx, tokens(2, seed=3), seq=ctx.sequence())
        assert receipt.problem is None
        names = [call["call"] for call in receipt.calls]
        assert names.count("transaction") == depth + 1
        assert (names.count("rollback"), names.count("commit")) == (depth, 1)
        plait.verify(saved(receipt, tmp_path), tiny)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_a_sequence_that_is_deleted_in_a_transaction_keeps_its_cells_after_the_rollback(
    tiny: plait.Model, tmp_path: Path, before: bool, closed: bool, depth: int
) -> None:
    """The rollback restores the cells, but nothing can reopen an object that is gone."""
    with context(tiny) as plain:
        ctx: Any = plain
        held = [ctx.sequence()] if before else []
        with ctx.record() as receipt:
            held = held or [ctx.sequence()]
            feed(ctx, tokens(5), seq=held[0])
            with contextlib.suppress(KeyError), contextlib.ExitStack() as blocks:
                for _ in range(depth):
                    transaction = blocks.enter_context(ctx.transaction())
                if closed:
                    held[0].close()
                    feed(ctx, tokens(2), seq=1)
                held.clear()
                transaction.rollback()
                feed(ctx, tokens(3, seed=1), seq=0)
                raise KeyError
            feed(ctx, tokens(3, seed=2), seq=0)
            assert ctx.kv.seq_len(0) == (11 if depth == 1 else 8)
        assert receipt.problem is None
        names = [call["call"] for call in receipt.calls]
        assert (names.count("rollback"), names.count("delete")) == (depth, 1)
        plait.verify(saved(receipt, tmp_path), tiny)


@pytest.mark.parametrize("when", [1, 2], ids=["while it is encoded", "while it runs"])
def test_a_transaction_that_is_deleted_in_a_call(
    tiny: plait.Model, tmp_path: Path, when: int
) -> None:
    class Value:
        n_uses = 0

        def __index__(self) -> int:
            self.n_uses += 1
            if self.n_uses == when:
                held.clear()
            return 7

    with context(tiny) as plain:
        ctx: Any = plain
        with ctx.record() as receipt:
            feed(ctx, tokens(5))
            held = [ctx.transaction()]
            held[0].__enter__()
            feed(ctx, tokens(5, seed=1))
            ctx.kv.seq_rm(0, 2, Value())
            feed(ctx, tokens(3, seed=2))
        assert not held
        if when == 1:
            assert receipt.problem is None
            plait.verify(saved(receipt, tmp_path), tiny)
        else:
            assert receipt.problem is not None
            assert "transaction was deleted during kv.seq_rm" in receipt.problem


def test_a_context_that_is_closed_in_a_recorded_transaction(
    tiny: plait.Model, tmp_path: Path
) -> None:
    ctx: Any = context(tiny)
    with ctx.record() as receipt, ctx.transaction():
        feed(ctx, tokens(5))
        ctx.close()
    assert receipt.problem is None
    plait.verify(saved(receipt, tmp_path), tiny)


def test_an_exception_undoes_recorded_transactions_that_are_open_inside(
    tiny: plait.Model, tmp_path: Path
) -> None:
    with context(tiny) as plain:
        ctx: Any = plain
        with ctx.record() as receipt:
            feed(ctx, tokens(5))
            with contextlib.suppress(KeyError), ctx.transaction():
                feed(ctx, tokens(2))
                inner = ctx.transaction().__enter__()
                feed(ctx, tokens(2))
                raise KeyError
            feed(ctx, tokens(3))
            with pytest.raises(ValueError, match="outer transaction"):
                inner.rollback()
        assert receipt.problem is None
        assert [call["call"] for call in receipt.calls][-3:] == ["rollback", "rollback", "decode"]
        plait.verify(saved(receipt, tmp_path), tiny)


def test_a_refused_call_of_a_transaction_is_not_recorded(tiny: plait.Model, tmp_path: Path) -> None:
    with context(tiny) as plain:
        ctx: Any = plain
        with ctx.record() as receipt:
            with ctx.transaction() as transaction:
                feed(ctx, tokens(5))
                with pytest.raises(ValueError, match="entered before"):
                    transaction.__enter__()
                with (
                    ctx.transaction(),
                    pytest.raises(ValueError, match="inner transaction is open"),
                ):
                    transaction.rollback()
                transaction.rollback()
                with pytest.raises(ValueError, match="already called"):
                    transaction.rollback()
            feed(ctx, tokens(3))
        assert receipt.problem is None
        plait.verify(saved(receipt, tmp_path), tiny)


def test_writes_are_recorded(tiny: plait.Model, tmp_path: Path) -> None:
    with context(tiny) as ctx, ctx.record() as receipt:
        kv: Any = ctx.kv
        feed(ctx, tokens(6))
        keys = np.ascontiguousarray(kv.keys(1, 0)[2:5] * 0.5)
        kv.write(0, 1, range(2, 5), keys=keys)
        feed(ctx, tokens(2))
    assert [call["call"] for call in receipt.calls] == ["decode", "kv.write", "decode"]
    plait.verify(saved(receipt, tmp_path), tiny)


def test_the_range_of_layers_is_recorded(tiny: plait.Model, tmp_path: Path) -> None:
    rows = np.random.default_rng(1).normal(size=(3, tiny.n_embd)).astype(np.float32)
    made = plait.Batch()
    made.add_embeddings(rows, logits="all")
    with context(tiny, layers=range(1, 2)) as ctx, ctx.record() as receipt:
        ctx.decode(made)
    assert receipt.options["layers"] == {"range": [1, 2, 1]}
    plait.verify(saved(receipt, tmp_path), tiny)


def test_a_state_at_the_beginning_belongs_to_it(tiny: plait.Model, tmp_path: Path) -> None:
    with context(tiny) as ctx:
        feed(ctx, tokens(12))
        ctx.kv.seq_add(0, 4, None, 3)
        with ctx.record() as receipt:
            out = feed(ctx, tokens(3, seed=1))
    path = saved(receipt, tmp_path)
    plait.verify(path, tiny)
    assert [call["call"] for call in receipt.calls] == ["kv.from_bytes", "decode"]
    assert receipt.calls[1]["sha256"] == hashlib.sha256(out.tobytes()).hexdigest()

    def earlier(content: dict[str, Any]) -> None:
        """The form of earlier versions."""
        content["state"] = content["calls"].pop(0)["args"]["data"]["bytes"]

    plait.verify(changed(path, earlier), tiny)

    def empty(content: dict[str, Any]) -> None:
        content["state"] = None

    with pytest.raises(plait.VerificationError):
        plait.verify(changed(path, empty), tiny)


def test_a_state_at_the_beginning_that_was_steered(tmp_path: Path) -> None:
    """It is loaded under the same adapters and vectors, without which it is refused."""
    metadata, weights = lora_models.model("llama")
    from python import gguf_writer

    model = plait.Model(gguf_writer.write(tmp_path / "model.gguf", metadata, weights))
    deltas = lora_models.deltas(weights, ["blk.0.attn_q.weight"], 2, 1)
    adapter = model.load_lora(lora_models.write_adapter(tmp_path / "1.gguf", "llama", deltas))
    vector = np.random.default_rng(1).normal(size=(2, model.n_embd)).astype(np.float32)
    with context(model) as ctx, ctx.sequence() as seq:
        ctx.set_lora({adapter: 0.5})
        ctx.set_control_vector(vector)
        feed(ctx, tokens(7), seq=seq)
        with ctx.record() as outer:
            feed(ctx, tokens(2, seed=1), seq=seq)
            with ctx.record() as inner:
                feed(ctx, tokens(2, seed=2), seq=seq)
                ctx.set_control_vector(None)
                feed(ctx, tokens(2, seed=3), seq=1)
    names = [call["call"] for call in inner.calls]
    assert names[:4] == ["set_lora", "set_control_vector", "kv.from_bytes", "decode"]
    for receipt in (inner, outer):
        plait.verify(saved(receipt, tmp_path), model)


def test_the_number_of_cells_that_defrag_moves_is_no_result(
    tiny: plait.Model, tmp_path: Path
) -> None:
    """It depends on where the cells lay, which no state restores."""
    with context(tiny) as ctx:
        for seq in (0, 1):
            feed(ctx, tokens(7), seq=seq)
        ctx.kv.seq_rm(0)
        with ctx.record() as receipt:
            assert ctx.kv.defrag() == 7
            feed(ctx, tokens(2), seq=1)
    path = saved(receipt, tmp_path)
    plait.verify(path, tiny)

    def earlier(content: dict[str, Any]) -> None:
        (call,) = (call for call in content["calls"] if call["call"] == "kv.defrag")
        assert "result" not in call
        call["result"] = 7

    plait.verify(changed(path, earlier), tiny)


def test_recordings_nest(tiny: plait.Model, tmp_path: Path) -> None:
    with context(tiny) as ctx, ctx.record() as outer:
        feed(ctx, tokens(4))
        with ctx.edit("l_out.0", 1.0), ctx.record() as inner:
            feed(ctx, tokens(3, seed=1))
        feed(ctx, tokens(2, seed=2))
    assert [call["call"] for call in inner.calls] == ["kv.from_bytes", "edit", "decode"]
    assert [call["call"] for call in outer.calls] == [
        "decode", "edit", "kv.to_bytes", "decode", "end_edit", "decode",
    ]  # fmt: skip
    for receipt in (inner, outer):
        plait.verify(saved(receipt, tmp_path), tiny)
    with pytest.raises(ValueError, match=r"call ctx\.record\(\) again"):
        inner.__enter__()


def test_a_sequence_that_is_deleted_while_a_nested_recording_begins(
    tiny: plait.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with context(tiny) as ctx, ctx.record() as outer:
        deleted = [ctx.sequence()]
        feed(ctx, tokens(4), seq=deleted[0])
        feed(ctx, tokens(3), seq=1)
        options_of = Recorder._options

        def options(self: Recorder, receipt: plait.Receipt) -> dict[str, Any]:
            deleted.clear()
            return options_of(self, receipt)

        monkeypatch.setattr(Recorder, "_options", options)
        with ctx.record() as inner:
            feed(ctx, tokens(3, seed=1), seq=ctx.sequence())
    for receipt in (inner, outer):
        plait.verify(saved(receipt, tmp_path), tiny)


def test_threads_are_recorded_in_their_order(tiny: plait.Model, tmp_path: Path) -> None:
    def work(seq: int) -> None:
        for i in range(8):
            feed(ctx, tokens(3, seed=seq * 10 + i), seq=seq)
            with ctx.sequence() as own:
                ctx.kv.seq_cp(seq, own)
            ctx.kv.seq_rm(seq, 4 + i)

    with context(tiny, n_seq_max=8) as ctx, ctx.record() as receipt:
        threads = [threading.Thread(target=work, args=[seq]) for seq in range(4)]
        # Handles take the ids above those of the threads.
        (
            feed(ctx, [5, 6], seq=0),
            feed(ctx, [5], seq=1),
            feed(ctx, [5], seq=2),
            feed(ctx, [5], seq=3),
        )
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(call["call"] == "decode" for call in receipt.calls) == 36
    plait.verify(saved(receipt, tmp_path), tiny)


def fail_in_a_capture(ctx: plait.Context) -> None:
    def fail(*_: object) -> None:
        raise KeyError

    with pytest.raises(KeyError), ctx.capture("l_out.0", sink=fail):
        feed(ctx, tokens(1))


@pytest.mark.parametrize(
    "apply",
    [
        lambda ctx: ctx.kv.keys(0, 0),
        lambda ctx: ctx.kv.values(1, seq=0),
        lambda ctx: ctx.kv.cells(),
        fail_in_a_capture,
    ],
    ids=["keys", "values", "cells", "a call that fails"],
)
def test_moves_are_applied_again_where_reads_and_failed_calls_applied_them(
    tiny: plait.Model, apply: Callable[[plait.Context], object], tmp_path: Path
) -> None:
    """The rotation of a key is rounded, so moves that are applied one by one give other bits than their sum."""
    with context(tiny) as ctx, ctx.record() as receipt:
        feed(ctx, tokens(12))
        for delta in range(3, 8):
            ctx.kv.seq_add(0, 0, None, delta)
            apply(ctx)
        feed(ctx, tokens(2, seed=1))
    plait.verify(saved(receipt, tmp_path), tiny)


def test_numpy_bools_are_options(tiny: plait.Model, tmp_path: Path) -> None:
    with context(tiny, swa_full=np.True_) as ctx, ctx.record() as receipt:
        feed(ctx, tokens(3))
    plait.verify(saved(receipt, tmp_path), tiny)


def test_failed_calls_are_not_recorded(tiny: plait.Model, tmp_path: Path) -> None:
    with context(tiny, kv_cells=96) as ctx, ctx.record() as receipt:
        feed(ctx, tokens(80))
        with pytest.raises(plait.CacheFull):
            feed(ctx, tokens(80), seq=1)
        with pytest.raises(plait.BatchError):
            feed(ctx, [10**6], seq=1)
        with pytest.raises(ValueError, match="p0"):
            ctx.kv.seq_rm(0, 5, 3)
        with pytest.raises(plait.StateError):
            ctx.kv.load(tmp_path / "nothing")
        with pytest.raises(TypeError):
            ctx.decode(None)  # type: ignore[arg-type]
        with pytest.raises(KeyError), ctx.edit("l_out.0", lambda rows: {}[1]):
            feed(ctx, tokens(2), seq=1)
    # The edit was open, though its function never returned.
    assert [call["call"] for call in receipt.calls] == ["decode", "edit"]
    assert receipt.problem is not None
    with context(tiny) as ctx, ctx.record() as receipt:
        feed(ctx, tokens(3))
        with pytest.raises(ValueError, match="control vector"):
            ctx.set_control_vector(np.ones((2, 3), np.float32))
        with pytest.raises(TypeError, match="adapters"):
            ctx.set_lora({"adapter": 1.0})
        with pytest.raises(TypeError):
            ctx.set_lora()
        feed(ctx, tokens(2))
    assert [call["call"] for call in receipt.calls] == ["decode", "decode"]
    assert receipt.problem is None
    plait.verify(saved(receipt, tmp_path), tiny)


@pytest.mark.parametrize("name", ["set_control_vector", "kv.seq_rm"])
def test_a_signal_handler_that_raises_in_a_call_leaves_no_gap(tiny: plait.Model, name: str) -> None:
    """The exception of the handler is no failure of the call, which may have changed something."""

    class Value:
        def __index__(self) -> int:  # stands for the handler, which Python calls within the call
            raise ValueError("the handler")

    with context(tiny) as ctx, ctx.record() as receipt:
        feed(ctx, tokens(3))
        vector = np.ones((2, tiny.n_embd), np.float32)
        calls = {
            "set_control_vector": lambda: ctx.set_control_vector(vector, last_layer=Value()),
            "kv.seq_rm": lambda: ctx.kv.seq_rm(0, 1, Value()),
        }
        with pytest.raises(ValueError, match="the handler"):
            calls[name]()
    assert receipt.problem == f"call 1: {name} was interrupted"


def test_failed_calls_keep_nothing_alive(tiny: plait.Model, tmp_path: Path) -> None:
    """A sequence that is deleted after a failed call is free at once, not at a garbage collection."""
    gc.collect()
    gc.disable()
    try:
        with context(tiny, n_seq_max=1) as ctx, ctx.record() as receipt:
            seq = ctx.sequence()
            feed(ctx, tokens(3), seq=seq)
            with contextlib.suppress(ValueError):
                ctx.kv.seq_add(seq, 0, None, -1)
            with contextlib.suppress(ValueError):
                ctx.set_control_vector(np.ones((2, 3), np.float32), seq=seq)
            gone = weakref.ref(seq)
            del seq
            assert gone() is None
            again = ctx.sequence()
            feed(ctx, tokens(2), seq=again)
    finally:
        gc.enable()
    plait.verify(saved(receipt, tmp_path), tiny)


def test_an_interrupt_leaves_no_gap(tiny: plait.Model, tmp_path: Path) -> None:
    """An exception after the call and before its record makes the receipt useless, and it states that."""

    class Stop(BaseException):
        pass

    class Calls(list[dict[str, Any]]):
        def append(self, _: object) -> None:
            raise Stop

    with context(tiny) as ctx, ctx.record() as receipt:
        feed(ctx, tokens(3))
        calls, receipt.calls = receipt.calls, Calls(receipt.calls)
        with pytest.raises(Stop):
            feed(ctx, tokens(3))
        receipt.calls = calls
    assert receipt.problem == "call 1: decode was interrupted"
    with pytest.raises(plait.ReceiptError, match="decode was interrupted"):
        plait.verify(saved(receipt, tmp_path), tiny)


def test_an_edit_by_a_function_is_refused_when_verified(tiny: plait.Model, tmp_path: Path) -> None:
    with context(tiny) as ctx, ctx.record() as receipt, ctx.edit("l_out.0", lambda rows: rows * 2):
        feed(ctx, tokens(3))
    assert receipt.problem is not None
    with pytest.raises(plait.ReceiptError, match=r"call 0: blk\.0\.l_out is edited by a function"):
        plait.verify(saved(receipt, tmp_path), tiny)


def test_a_context_is_as_it_was_after_a_recording(tiny: plait.Model) -> None:
    with context(tiny) as ctx:
        with ctx.record():
            feed(ctx, tokens(3))
        before = set(vars(ctx)), set(vars(ctx.kv))
        assert "decode" not in before[0]
        with contextlib.suppress(KeyError), ctx.record() as receipt:
            feed(ctx, tokens(3))
            raise KeyError
        assert (set(vars(ctx)), set(vars(ctx.kv))) == before
        feed(ctx, tokens(3))
    assert [call["call"] for call in receipt.calls] == ["kv.from_bytes", "decode"]
    with context(tiny) as ctx, ctx.record() as receipt:
        feed(ctx, tokens(3))
        ctx.close()
    assert len(receipt) == 1


def test_another_model_instruction_set_or_version_is_refused(
    tiny: plait.Model, demo_model: plait.Model, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(plait.ReceiptError, match=r"of another model: tiny\.gguf"):
        plait.verify(run, demo_model)
    text = run.read_text()
    with pytest.raises(plait.ReceiptError, match=r"neon.*this machine has scalar"):
        plait.verify(changed(run, lambda content: content.update(isa="neon")), tiny)
    run.write_text(text)
    with pytest.raises(plait.ReceiptError, match=r"version 2 .* reads version 1"):
        plait.verify(changed(run, lambda content: content.update(version=2)), tiny)
    run.write_text(text)
    if plait.build_info()["isas"][-1] != "scalar":
        monkeypatch.setenv("PLAIT_ISA", "scalar")
        with pytest.raises(plait.ReceiptError, match="PLAIT_ISA limits this process to scalar"):
            plait.verify(run, tiny)


@pytest.mark.parametrize("change", ["replaced", "another folder"])
def test_a_model_whose_path_leads_to_another_file_is_refused(
    tiny_path: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    data = bytearray(tiny_path.read_bytes())
    Path("model.gguf").write_bytes(data)
    model = plait.Model("model.gguf")
    data[-1] ^= 1
    Path("there/model.gguf").write_bytes(data)
    if change == "replaced":
        Path("there/model.gguf").replace("model.gguf")
    else:
        monkeypatch.chdir("there")
    with context(model) as ctx, ctx.record() as receipt:
        feed(ctx, tokens(5))
    with pytest.raises(plait.ModelError, match=r"^model\.gguf: changed since it was opened"):
        receipt.save(tmp_path / "other.json")
    with pytest.raises(plait.ModelError, match=r"^model\.gguf: changed since it was opened"):
        plait.verify(run, model)


def test_an_adapter_whose_file_was_replaced_is_a_problem(tmp_path: Path) -> None:
    from python import gguf_writer

    metadata, weights = lora_models.model("llama")
    model = plait.Model(gguf_writer.write(tmp_path / "model.gguf", metadata, weights))

    def write(seed: int) -> Path:
        deltas = lora_models.deltas(weights, ["blk.0.attn_q.weight"], 2, seed)
        return lora_models.write_adapter(tmp_path / f"{seed}.gguf", "llama", deltas)

    adapter = model.load_lora(write(1))
    with context(model) as ctx:
        ctx.set_lora({adapter: 1.0})
        with ctx.record() as receipt:
            feed(ctx, tokens(5))
        path = saved(receipt, tmp_path)
        write(2).replace(adapter.path)
        with ctx.record() as receipt:
            feed(ctx, tokens(5))
        assert "1.gguf: changed since it was opened" in str(receipt.problem)
    with pytest.raises(plait.ModelError, match="changed since it was opened"):
        plait.verify(path, model, adapters=[adapter])


def test_the_recorded_instruction_set_is_used(tiny: plait.Model, isa: str, tmp_path: Path) -> None:
    with context(tiny, isa=isa) as ctx, ctx.record() as receipt:
        feed(ctx, tokens(20))
    assert receipt.isa == ctx.isa == isa
    plait.verify(saved(receipt, tmp_path), tiny)


def test_the_first_other_bit_is_named(tiny: plait.Model, run: Path) -> None:
    text = run.read_text()

    def flip(content: dict[str, Any]) -> None:
        digest = content["calls"][2]["sha256"]
        content["calls"][2]["sha256"] = ("0" if digest[0] != "0" else "1") + digest[1:]
        content["calls"][3]["sha256"] = "0" * 64

    with pytest.raises(
        plait.VerificationError, match=r"^call 2 \(decode\) gave another result"
    ) as caught:
        plait.verify(changed(run, flip), tiny)
    assert caught.value.call == 2
    assert caught.value.expected[1:] == caught.value.found[1:]
    assert caught.value.expected[0] != caught.value.found[0]
    run.write_text(text)

    def other_token(content: dict[str, Any]) -> None:
        content["calls"][0]["args"]["batch"]["batch"]["tokens"][4] += 1

    with pytest.raises(plait.VerificationError) as caught:
        plait.verify(changed(run, other_token), tiny)
    assert caught.value.call == 0
    run.write_text(text)

    def impossible(content: dict[str, Any]) -> None:
        content["calls"][1]["args"]["dst"] = 77

    with pytest.raises(
        plait.VerificationError, match=r"^call 1 \(kv.seq_cp\) failed: ValueError"
    ) as caught:
        plait.verify(changed(run, impossible), tiny)
    assert caught.value.call == 1


def test_any_changed_byte_is_found_or_changes_nothing(tiny: plait.Model, run: Path) -> None:
    data = run.read_bytes()
    content = json.loads(data)
    rng = np.random.default_rng(5)
    n_found = 0
    for at in rng.choice(len(data), 400, replace=False):
        other = bytearray(data)
        other[at] ^= 1 << int(rng.integers(0, 8))
        run.write_bytes(other)
        try:
            receipt = plait.Receipt.load(run)
        except plait.Error:
            n_found += 1
        else:
            receipt.save(run)
            assert json.loads(run.read_bytes()) == content
    assert n_found > 300


def test_hostile_files_raise_errors_of_plait(tiny: plait.Model, run: Path) -> None:
    text = run.read_text()
    huge = "9" * 5000
    files = [
        "", "{", "[]", "null", "{}", "\x00" * 100, "\ud800", "[" * 100_000, '{"format": "plait receipt"}',
        text[: len(text) // 2], text.replace('"version": 1', '"version": true'), text.replace('"version": 1', huge),
        text.replace('"version": 1', f'"version": {huge}'), text.replace('"version": 1', '"version": NaN'),
    ]  # fmt: skip
    for file in files:
        run.write_bytes(file.encode(errors="surrogatepass"))
        with pytest.raises(plait.ReceiptError):
            plait.verify(run, tiny)


DEFECTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "calls of other types": lambda c: c["calls"].append(7),
    "a call without arguments": lambda c: c["calls"].append({"call": "decode"}),
    "a call without a batch": lambda c: c["calls"].append({"call": "decode", "args": {}}),
    "an unknown call": lambda c: c["calls"].append({"call": "kv.__class__", "args": {}}),
    "a method that is not recorded": lambda c: c["calls"].append({"call": "close", "args": {}}),
    "a call that writes a file": lambda c: c["calls"].append({"call": "kv.save", "args": {"path": "/tmp/x"}}),
    "an unknown argument": lambda c: c["calls"][1]["args"].update(other=1),
    "an argument of another type": lambda c: c["calls"][1]["args"].update(src="0"),
    "a deep argument": lambda c: c["calls"][1]["args"].update(src=[[[[[[]]]]]]),
    "a huge argument": lambda c: c["calls"][1]["args"].update(src=1 << 70),
    "a huge token": lambda c: c["calls"][0]["args"]["batch"]["batch"]["tokens"].append(1 << 70),
    "a text as tokens": lambda c: c["calls"][0]["args"]["batch"]["batch"].update(tokens="abc"),
    "a huge output": lambda c: c["calls"][0]["args"]["batch"]["batch"].update(outputs=[1 << 40]),
    "no sequences": lambda c: c["calls"][0]["args"]["batch"]["batch"].pop("sequences"),
    "sequences of other types": lambda c: c["calls"][0]["args"]["batch"]["batch"].update(sequences=[[None]] * 9),
    "too few positions": lambda c: c["calls"][0]["args"]["batch"]["batch"].update(positions=[1]),
    "deep positions": lambda c: c["calls"][0]["args"]["batch"]["batch"].update(positions=[[[1]]] * 9),
    "an unknown option": lambda c: c["options"].update(layerz=3),
    "a huge option": lambda c: c["options"].update(n_ctx=1 << 62),
    "an option of another type": lambda c: c["options"].update(n_seq_max=[]),
    "an option that is an array of nothing": lambda c: c["options"].update(split={"array": "x"}),
    "an unknown state": lambda c: c.update(state="f" * 64),
    "a state that is none": lambda c: c.update(
        state=hashlib.sha256(b"x").hexdigest(), data={hashlib.sha256(b"x").hexdigest(): "eA=="}
    ),
    "data of another digest": lambda c: c["data"].update({"f" * 64: "eA=="}),
    "data of another type": lambda c: c["data"].update({"f" * 64: 3}),
    "sequences that cannot be open": lambda c: c.update(sequences=[99]),
    "sequences of no type": lambda c: c.update(sequences=[{}]),
    "no files": lambda c: c["model"].pop("files"),
    "files of other types": lambda c: c["model"].update(files=[1]),
    "adapters of other types": lambda c: c["adapters"].append(3),
    "an adapter loaded at a strange time": lambda c: c["adapters"].append({"path": "/x", "order": [1]}),
    "an adapter that is a device": lambda c: c["adapters"].append({"path": "/dev/zero", "size": 0, "sha256": "0"}),
    "an adapter with a strange path": lambda c: c["adapters"].append({"path": "a\0b", "size": 0, "sha256": "0"}),
    "another device": lambda c: c["devices"].update({"vulkan:9": "a device"}),
    "devices of another type": lambda c: c["devices"].update(cpu=[1]),
    "an end of no edit": lambda c: c["calls"].append({"call": "end_edit", "args": {"number": 3}}),
    "an edit of nothing": lambda c: c["calls"].append({"call": "edit", "args": {"number": 3}}),
    "an edit with nested values": lambda c: c["calls"].append(
        {"call": "edit", "args": {"number": [], "what": {"a": 1}, "seq": 3, "positions": {}, "name": 1, "mode": 2}}
    ),
    "a close of nothing": lambda c: c["calls"].append({"call": "close", "args": {"sequence": 0}}),
    "a result of another type": lambda c: c["calls"][1].update(result=[1]),
    "a digest of another type": lambda c: c["calls"][0].update(sha256=None),
    "a result too many": lambda c: c["calls"][0].update(result=3),
}  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS)
def test_content_that_no_recording_writes(tiny: plait.Model, run: Path, defect: str) -> None:
    with pytest.raises(plait.Error):
        plait.verify(changed(run, DEFECTS[defect]), tiny)


def test_misuse(tiny: plait.Model, run: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="verify: model: expected a Model, got str"):
        plait.verify(run, "model.gguf")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="verify: receipt: expected a Receipt or a path, got int"):
        plait.verify(3, tiny)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="verify: progress"):
        plait.verify(run, tiny, progress=3)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError) as caught:
        plait.verify(tmp_path / "nothing.json", tiny)
    assert isinstance(caught.value, plait.ReceiptError)
    with pytest.raises(ValueError, match="save: the receipt is empty"):
        plait.Receipt().save(run)
    with pytest.raises(plait.ReceiptError, match="empty"):
        plait.verify(plait.Receipt(), tiny)
    seen: list[tuple[int, int]] = []
    plait.verify(plait.Receipt.load(run), tiny, progress=lambda *done: seen.append(done))
    assert seen[-1] == (4, 4)


def test_score_writes_a_receipt(demo_model: plait.Model, tmp_path: Path) -> None:
    path = tmp_path / "score.json"
    scores = plait.score(demo_model, "Tom lives in", [" Paris", " Rome"], receipt=path)
    assert [float(s) for s in scores] == [
        float(s) for s in plait.score(demo_model, "Tom lives in", [" Paris", " Rome"])
    ]
    assert plait.verify(path, demo_model).n_tokens == 4
    path.unlink()
    with context(demo_model, n_seq_max=1) as ctx, ctx.sequence(), pytest.raises(plait.CacheFull):
        plait.score(ctx, [1], [[2]], receipt=path)
    assert not path.exists()


def test_generation_is_recorded(demo_model: plait.Model, tmp_path: Path) -> None:
    """All that runs in the context is: here the thread of an engine."""
    with plait.Engine(demo_model, n_seq_max=4) as engine, engine.ctx.record() as receipt:
        texts = [
            engine.complete_sync(f"{name} lives in", max_tokens=8).text for name in ("Tom", "Anna")
        ]
    assert all(texts)
    path = saved(receipt, tmp_path)
    assert plait.verify(path, demo_model).n_tokens >= 16


MODELS = ["gemma3", "jamba", "mamba", "t5", "deepseek2", "cohere2"]


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_memory(data_dir: Path, name: str, tmp_path: Path) -> None:
    model = plait.Model(data_dir / "conformance" / name / "model.gguf")
    ids = [np.random.default_rng(i).integers(5, 60, 8).tolist() for i in range(4)]
    with context(model) as ctx:
        if ctx.kv.kind == "cross":
            ctx.encode(batch((ids[3], 0), (ids[2], 1)))
        feed(ctx, ids[0])
        with ctx.record() as receipt:
            feed(ctx, ids[1])
            ctx.kv.seq_cp(0, 1)
            feed(ctx, ids[2], seq=1)
            ctx.kv.seq_rm(0)
            if ctx.kv.kind == "cross":
                ctx.encode(batch((ids[1], 0)))
            feed(ctx, ids[3])
    plait.verify(saved(receipt, tmp_path), model)


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "feed",
                "feed",
                "fork",
                "open",
                "close",
                "cut",
                "evict",
                "shift",
                "defrag",
                "edit",
                "steer",
                "end",
                "load",
                "step",
            ]
        ),
        st.integers(0, 3),
        st.integers(1, 6),
    ),
    min_size=3,
    max_size=25,
)


def play(
    ctx: plait.Context,
    operations: list[tuple[str, int, int]],
    handles: list[plait.Sequence],
) -> None:
    """Play operations on a context and open sequences; those that do not apply to its state do nothing."""
    edits: list[Any] = []
    rng = np.random.default_rng(len(operations))
    for name, i, n in operations:
        seq = handles[i % len(handles)] if handles else None
        try:
            if name == "open":
                handles.append(ctx.sequence())
            elif name == "end" and edits:
                edits.pop(i % len(edits)).__exit__(None, None, None)
            elif name == "steer":
                ctx.set_control_vector(rng.normal(size=(2, ctx.model.n_embd)), first_layer=0)
            elif name == "defrag":
                ctx.kv.defrag()
            elif seq is None:
                feed(ctx, tokens(n, seed=i), seq=ctx.n_seq_max - 1)
            elif name == "feed":
                feed(ctx, tokens(n, seed=i), seq=seq, logits="last" if i else "all")
            elif name == "step":
                ctx.decode(batch(*(([n], each) for each in handles)))
            elif name == "fork":
                handles.append(seq.fork(n if i else None))
            elif name == "close":
                handles.remove(seq)
                if i % 2:
                    seq.close()
                del seq
            elif name == "cut":
                seq.truncate(n)
            elif name == "evict":
                ctx.kv.evict(seq, [i, n, n + 3])
            elif name == "shift":
                seq.shift(1, n)
            elif name == "edit":
                what = rng.normal(size=ctx.model.n_embd)
                edits.append(
                    ctx.edit("l_out.0", what, seq=None if i else seq, positions=slice(n, None))
                )
                edits[-1].__enter__()
            elif name == "load":
                ctx.kv.from_bytes(ctx.kv.to_bytes(seq), seq)
        except (plait.CacheFull, plait.BatchError, plait.UnsupportedError, ValueError):
            pass  # the program goes on, as a user's would
    for edit in reversed(edits):
        edit.__exit__(None, None, None)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(before=OPERATIONS, operations=OPERATIONS, where=st.integers(0), bit=st.integers(0, 7))
def test_random_programs(
    tiny: plait.Model, tmp_path: Path, before: Any, operations: Any, where: int, bit: int
) -> None:
    """Each is verified, and no changed digit of its digests is."""
    with context(tiny, n_ctx=40, kv_cells=100) as ctx:
        handles: list[plait.Sequence] = []
        play(ctx, before, handles)
        with ctx.record() as receipt:
            play(ctx, operations, handles)
    assert receipt.problem is None
    path = saved(receipt, tmp_path)
    plait.verify(path, tiny)
    text = path.read_text()
    digests = list(DIGEST.finditer(text))
    at = digests[where % len(digests)].start() + where % 64
    other = "0123456789abcdef"[int(text[at], 16) ^ (1 << bit % 4)]
    path.write_text(text[:at] + other + text[at + 1 :])
    with pytest.raises(plait.Error):
        plait.verify(path, tiny)
    stated = [i for i, call in enumerate(receipt.calls) if "sha256" in call]
    if stated:
        i = stated[where % len(stated)]
        digest = receipt.calls[i]["sha256"]
        receipt.calls[i]["sha256"] = (
            digest[:-1] + "0123456789abcdef"[int(digest[-1], 16) ^ (1 << bit % 4)]
        )
        with pytest.raises(plait.VerificationError) as caught:
            plait.verify(receipt, tiny)
        assert caught.value.call == i
