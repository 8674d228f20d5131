"""Saving, loading and copying the contents of a context."""

import fcntl
import os
import random
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import plait
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from python.drive import batch, feed, same_bits, tokens

from python import gguf_writer

KINDS = ["unified", "streams"]
TYPES = ["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]


def made(model, **options):
    return plait.Context(model, **{"n_ctx": 64, "n_seq_max": 4, "threads": 1, **options})


@pytest.fixture
def ctx(tiny):
    with made(tiny) as ctx:
        yield ctx


@pytest.fixture
def full(ctx):
    """A context with three sequences: one is a fork, one is shifted and has a hole."""
    feed(ctx, tokens(20), 0)
    feed(ctx, tokens(9, 1), 1)
    ctx.kv.seq_cp(0, 3, 0, 12)
    ctx.kv.seq_rm(1, 3, 5)
    ctx.kv.seq_add(1, 5, None, 4)
    return ctx


def next_logits(ctx, *seqs):
    """Return the logits of one more token of each sequence, which is then removed."""
    out = ctx.decode(batch(*(([7], seq) for seq in seqs))).logits.copy()
    for seq in seqs:
        ctx.kv.seq_rm(seq, ctx.kv.seq_pos_max(seq))
    return out


# -- round trips -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cache_type", TYPES)
def test_a_state_gives_the_same_logits_and_the_same_bytes(tiny, kind, cache_type):  # S4-10, S4-24
    types = {"type_k": cache_type, "type_v": cache_type, "kv": kind}
    with made(tiny, **types) as one, made(tiny, **types) as other:
        feed(one, tokens(20), 0)
        one.kv.seq_cp(0, 2, 0, 15)
        feed(one, tokens(7, 1), 2)
        feed(other, tokens(30, 4), 1)
        data = one.kv.to_bytes()
        other.kv.from_bytes(data)
        assert other.kv.to_bytes() == data
        assert other.kv.seq_pos_max(1) == -1
        assert same_bits(next_logits(other, 0, 2), next_logits(one, 0, 2))


@pytest.mark.parametrize("seq", range(4))
def test_one_sequence_goes_to_any_id(full, tiny, seq):
    with made(tiny) as other:
        feed(other, tokens(5, 9), 1)
        kept = other.kv.to_bytes(1)
        if seq != 1:
            other.kv.from_bytes(full.kv.to_bytes(0), seq)
            assert other.kv.to_bytes(1) == kept
            assert same_bits(next_logits(other, seq), next_logits(full, 0))
        other.kv.from_bytes(full.kv.to_bytes(1), seq=2)
        assert (other.kv.seq_pos_min(2), other.kv.seq_pos_max(2)) == (0, 12)
        assert same_bits(next_logits(other, 2), next_logits(full, 1))
        other.kv.from_bytes(full.kv.to_bytes(3))
        assert other.kv.seq_len(3) == 12


def test_a_sequence_is_compared_with_the_one_that_it_replaces(full, tiny):
    """Other sequences may have changes of their own, whether or not the id is given."""
    rows = np.random.default_rng(0).standard_normal((tiny.n_layer, tiny.n_embd))
    full.set_control_vector(rows.astype(np.float32), seq=1)
    for seq in (0, 1):
        saved = full.kv.to_bytes(seq)
        full.kv.from_bytes(saved)
        full.kv.from_bytes(saved, seq)
        with pytest.raises(plait.StateError, match="control vector"):
            full.kv.from_bytes(saved, 1 - seq)
        assert full.kv.to_bytes(seq) == saved


def test_states_move_between_unified_streams_sizes_and_kernels(full, tiny):  # 2.6.5
    data = full.kv.to_bytes()
    want = next_logits(full, 0, 1, 3)
    for options in (
        {"kv": "streams"}, {"kv": "streams", "n_ctx": 24}, {"n_ctx": 300}, {"n_seq_max": 9},
        {"kv_cells": 40}, {"flash_attention": False}, {"n_ubatch": 3}, {"threads": 2},
    ):  # fmt: skip
        with made(tiny, **options) as other:
            other.kv.from_bytes(data)
            assert [other.kv.seq_len(s) for s in range(4)] == [20, 7, 0, 12]
            got = next_logits(other, 0, 1, 3)
            if options.get("flash_attention", True):
                assert same_bits(got, want), options
            else:
                np.testing.assert_allclose(got, want, atol=1e-4)
            for seq in (0, 1, 3):
                assert other.kv.to_bytes(seq) == full.kv.to_bytes(seq), options


def test_forks_stay_shared(full, tiny):
    used = full.kv.n_used
    with made(tiny, kv_cells=used) as other:
        other.kv.from_bytes(full.kv.to_bytes())
        assert (other.kv.n_used, other.kv.n_free) == (used, 0)


def test_pending_shifts_are_applied_first(full):
    assert full.kv.cells()["shift"].any()
    data = full.kv.to_bytes()
    assert not full.kv.cells()["shift"].any()
    assert full.kv.to_bytes() == data


def test_nothing_and_everything_are_states(tiny):
    with made(tiny) as ctx:
        empty = ctx.kv.to_bytes()
        alone = ctx.kv.to_bytes(2)
        feed(ctx, tokens(64), 0)
        kept = ctx.kv.to_bytes(0)
        ctx.kv.from_bytes(alone)
        assert ctx.kv.to_bytes(0) == kept
        ctx.kv.from_bytes(empty)
        assert ctx.kv.n_used == 0
        ctx.kv.from_bytes(kept)
        assert ctx.kv.n_used == 64
        ctx.kv.from_bytes(alone, seq=0)
        assert ctx.kv.n_used == 0


def test_a_loaded_sequence_continues_like_the_original(full, tiny):
    with made(tiny) as other:
        other.kv.from_bytes(full.kv.to_bytes())
        for ctx in (full, other):
            ctx.kv.seq_cp(3, 2, 4, 12)
            ctx.kv.seq_add(0, 10, None, 3)
            ctx.kv.seq_rm(1, 0, 2)
        more = tokens(9, 5)
        assert same_bits(feed(full, more, 0), feed(other, more, 0))
        assert full.kv.to_bytes() == other.kv.to_bytes()


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_equal_contents_give_equal_bytes_whatever_happened_before(tiny, data):
    """The same sequences in other rows, after other operations."""
    lengths = data.draw(st.lists(st.integers(0, 12), min_size=3, max_size=3))
    with made(tiny, n_seq_max=3) as plain, made(tiny, n_seq_max=3) as other:
        for seq, n in enumerate(lengths):
            if n:
                feed(plain, tokens(n, seq), seq)
        said = [0, 0, 0]
        for _ in range(data.draw(st.integers(0, 12))):
            seq = data.draw(st.integers(0, 2))
            match data.draw(st.sampled_from(["grow", "stray", "cut", "load", "swap"])):
                case "grow":
                    n = min(said[seq] + data.draw(st.integers(1, 5)), lengths[seq])
                    if n > said[seq]:
                        feed(other, tokens(lengths[seq], seq)[said[seq] : n], seq)
                        said[seq] = n
                case "stray":
                    feed(other, tokens(4, 99), seq)
                    other.kv.seq_rm(seq, said[seq])
                case "cut":
                    said[seq] = data.draw(st.integers(0, said[seq]))
                    other.kv.seq_rm(seq, said[seq])
                case "load":
                    other.kv.from_bytes(other.kv.to_bytes(seq), seq)
                case "swap":
                    held = other.kv.to_bytes()
                    other.kv.clear()
                    feed(other, tokens(5, 98), 0)
                    other.kv.from_bytes(held)
        for seq, n in enumerate(lengths):
            if n > said[seq]:
                feed(other, tokens(n, seq)[said[seq] :], seq)
        assert other.kv.to_bytes() == plain.kv.to_bytes()


def test_any_object_with_bytes_will_do(full):
    data = full.kv.to_bytes()
    for form in (bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)):
        full.kv.from_bytes(form)
    for bad in (None, "text", 5, [1, 2], np.zeros((4, 4), np.uint8)[:, ::2]):
        with pytest.raises(TypeError, match="data"):
            full.kv.from_bytes(bad)


# -- contexts ----------------------------------------------------------------------------------------


def test_a_copy_is_deep_and_both_go_on(full, tiny):  # S4-24
    with made(tiny, kv="streams") as other:
        feed(other, tokens(3), 2)
        full.kv.copy_to(other)
        assert other.kv.seq_len(2) == 0
        assert same_bits(next_logits(other, 0, 1), next_logits(full, 0, 1))
        kept = full.kv.to_bytes()
        feed(other, tokens(5), 0)
        other.kv.clear()
        assert full.kv.to_bytes() == kept
        full.kv.copy_to(full)
        assert full.kv.to_bytes() == kept


def test_copies_are_refused_and_change_nothing(full, tiny):
    with made(tiny, type_k="q8_0") as other, made(tiny, n_seq_max=2) as small:
        for target in (other, small):
            feed(target, tokens(3), 1)
            kept = target.kv.to_bytes()
            with pytest.raises(plait.StateError):
                full.kv.copy_to(target)
            assert target.kv.to_bytes() == kept
    with pytest.raises(ValueError, match="closed"):
        full.kv.copy_to(other)
    with pytest.raises(TypeError, match="Context"):
        full.kv.copy_to(full.kv)


def test_two_threads_copying_to_each_other_do_not_deadlock(full, tiny):
    with made(tiny) as other:
        feed(other, tokens(3), 1)
        pair = [(full, other), (other, full)]
        threads = [
            threading.Thread(target=lambda a=a, b=b: [a.kv.copy_to(b) for _ in range(50)])
            for a, b in pair
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
            assert not thread.is_alive()
        assert full.kv.to_bytes() == other.kv.to_bytes()


@pytest.mark.parametrize("general", [True, False])
def test_the_changes_of_sequences_that_hold_nothing_do_not_matter(tiny, general):
    first, second = np.random.default_rng(0).standard_normal(
        (2, tiny.n_layer, tiny.n_embd), np.float32
    )
    contexts = [made(tiny, n_seq_max=n) for n in (2, 3)]
    for ctx in contexts:
        if general:
            ctx.set_control_vector(first)
        ctx.set_control_vector(second, seq=0)
    small, large = contexts
    feed(small, tokens(3), 0)
    feed(small, tokens(3), 1)
    large.kv.from_bytes(small.kv.to_bytes())
    small.kv.copy_to(large)
    assert large.kv.to_bytes() == small.kv.to_bytes()
    with made(tiny) as other:
        other.set_control_vector(second)
        for each in (
            lambda: small.kv.copy_to(other),
            lambda: other.kv.from_bytes(small.kv.to_bytes()),
        ):
            with pytest.raises(plait.StateError, match="of sequence 0"):
                each()
        small.kv.seq_rm(1)
        other.kv.from_bytes(small.kv.to_bytes())
        other.set_control_vector(first, seq=3)
        small.kv.copy_to(other)
    for ctx in contexts:
        ctx.close()


# -- what does not fit -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def variants(tmp_path_factory):
    """Return files that each differ from the tiny model in one respect."""
    folder = tmp_path_factory.mktemp("variants")
    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary()
    weights = gguf_writer.llama_weights()
    one_layer = {name: w for name, w in weights.items() if not name.startswith("blk.1.")}
    files = {
        "weights": (metadata, gguf_writer.llama_weights(5)),
        "layers": (metadata | {"llama.block_count": 1}, one_layer),
        "rope": (metadata | {"llama.rope.freq_base": 500.0}, weights),
    }
    return {
        name: plait.Model(gguf_writer.write(folder / f"{name}.gguf", *parts))
        for name, parts in files.items()
    }


@pytest.mark.parametrize(
    ("which", "named"),
    [
        ("weights", "'weights'"),
        ("layers", "'llama.block_count' is '2' in it, expected '1'"),
        ("rope", "'llama.rope.freq_base'"),
    ],
)
@pytest.mark.goal("G7")
def test_states_of_other_models_are_refused_by_name(full, variants, which, named):  # G7
    with made(variants[which]) as other:
        feed(other, tokens(5), 0)
        kept = other.kv.to_bytes()
        for call in (
            lambda: other.kv.from_bytes(full.kv.to_bytes()),
            lambda: full.kv.copy_to(other),
        ):
            with pytest.raises(plait.StateError, match=named):
                call()
            assert other.kv.to_bytes() == kept


SIX_KINDS = ["llama-gqa", "gemma3", "jamba", "t5", "rwkv7", "deepseek2"]


@pytest.mark.goal("G7")
def test_states_of_six_kinds_of_model_are_refused_by_all_others(data_dir, record_property):  # G7
    """Each of six models refuses the states of the five others, names a field, and accepts its own."""
    contexts = {}
    for kind in SIX_KINDS:
        ctx = made(plait.Model(data_dir / "conformance" / kind / "model.gguf"))
        if ctx.kv.kind == "cross":
            ctx.encode(batch((tokens(5), 0), logits="none"))
        feed(ctx, tokens(6), 0)
        contexts[kind] = ctx
    states = {kind: ctx.kv.to_bytes() for kind, ctx in contexts.items()}
    n = 0
    for kind, ctx in contexts.items():
        for other, state in states.items():
            if other == kind:
                ctx.kv.from_bytes(state)
                continue
            with pytest.raises(plait.StateError, match=r"'[\w. ]+' is .* in it"):
                ctx.kv.from_bytes(state)
            assert ctx.kv.to_bytes() == states[kind]
            n += 1
        ctx.close()
    assert n == 30
    record_property(
        "figure", f"{n} of 30 pairs of six kinds of model refused, each with the name of a field"
    )


@pytest.mark.parametrize("given_type", TYPES)
@pytest.mark.parametrize("which", ["keys", "values"])
@pytest.mark.goal("G7")
def test_states_of_other_cache_types_are_refused_by_name(tiny, given_type, which):  # G7
    mine = "f16" if given_type != "f16" else "f32"
    option = {"keys": "type_k", "values": "type_v"}[which]
    with made(tiny, **{option: given_type}) as one, made(tiny, **{option: mine}) as other:
        feed(one, tokens(5), 0)
        message = f"'{which} of layer 0' is '{given_type.upper()} .*expected '{mine.upper()} "
        with pytest.raises(plait.StateError, match=message):
            other.kv.from_bytes(one.kv.to_bytes())


@pytest.mark.goal("G7")
def test_states_of_other_window_sizes_are_refused(any_model):  # G7
    with made(any_model, swa_full=True) as one, made(any_model) as other:
        if one.kv.kind != "sliding":
            pytest.skip("it has no window")
        for a, b in ((one, other), (other, one)):
            with pytest.raises(plait.StateError, match=r"'swa_full' is '(True|False)' in it"):
                a.kv.copy_to(b)


def test_rotary_factors_chosen_by_n_ctx_must_be_the_same(data_dir):  # 2.6.5
    """LongRoPE uses other factors above the training length."""
    try:
        model = plait.Model(data_dir / "conformance" / "phi3-longrope" / "model.gguf")
    except plait.UnsupportedError as error:
        pytest.skip(str(error)[:80])
    with (
        made(model, n_ctx=32) as short,
        made(model, n_ctx=48) as same,
        made(model, n_ctx=512) as long,
    ):
        feed(short, tokens(20), 0)
        same.kv.from_bytes(short.kv.to_bytes())
        with pytest.raises(plait.StateError, match="rotation of keys"):
            long.kv.from_bytes(short.kv.to_bytes())


def test_too_little_room_is_reported_in_cells_and_changes_nothing(full, tiny):
    data = full.kv.to_bytes()
    for options, numbers in (
        ({"n_ctx": 16}, (20, 16)),
        ({"n_ctx": 32, "kv_cells": 26}, (27, 26)),
    ):
        with made(tiny, **options) as other:
            feed(other, tokens(4), 2)
            kept = other.kv.to_bytes()
            with pytest.raises(plait.CacheFull) as error:
                other.kv.from_bytes(data)
            assert (error.value.needed, error.value.free) == numbers
            assert other.kv.to_bytes() == kept


def test_invalid_ids_are_refused(full, tiny):
    with made(tiny, n_seq_max=2) as other:
        with pytest.raises(plait.StateError, match=r"sequence 3.*n_seq_max"):
            other.kv.from_bytes(full.kv.to_bytes())
        with pytest.raises(plait.StateError, match="sequence 3"):
            other.kv.from_bytes(full.kv.to_bytes(3))
        for call in (
            lambda: other.kv.from_bytes(full.kv.to_bytes(3), seq=2),
            lambda: other.kv.to_bytes(-1),
            lambda: other.kv.save("never", seq=5),
        ):
            with pytest.raises(ValueError, match="does not exist"):
                call()
        other.kv.from_bytes(full.kv.to_bytes(3), seq=0)
        with pytest.raises(plait.StateError, match="whole memory"):
            full.kv.from_bytes(full.kv.to_bytes(), seq=0)
    assert not Path("never").exists()


@pytest.mark.goal("G6")
def test_damage_in_every_region_is_refused_and_changes_nothing(full):  # G6
    data = full.kv.to_bytes()
    full.kv.from_bytes(data)
    rng = random.Random(1)
    places = {*range(400), *range(len(data) - 50, len(data))}
    places |= {rng.randrange(len(data)) for _ in range(600)}
    for at in sorted(places):
        bad = bytearray(data)
        bad[at] ^= 1 << rng.randrange(8)
        with pytest.raises(plait.StateError):
            full.kv.from_bytes(bad)
    for n in (0, 1, 7, 23, 24, 100, len(data) // 2, len(data) - 1):
        with pytest.raises(plait.StateError):
            full.kv.from_bytes(data[:n])
    with pytest.raises(plait.StateError, match="bytes"):
        full.kv.from_bytes(data + b"\0")
    assert full.kv.to_bytes() == data


# -- files -------------------------------------------------------------------------------------------


def test_files_equal_the_result_of_to_bytes(full, tiny, tmp_path):
    path = tmp_path / "a.state"
    full.kv.save(path)
    assert path.read_bytes() == full.kv.to_bytes()
    full.kv.save(str(path), seq=1)
    assert path.read_bytes() == full.kv.to_bytes(1)
    with made(tiny) as other:
        other.kv.load(path, seq=2)
        assert same_bits(next_logits(other, 2), next_logits(full, 1))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.state"]


def test_other_threads_open_sequences_while_a_file_is_written(full, tmp_path):
    path = tmp_path / "a.state"
    opened = threading.Event()

    def use_context():
        with full.sequence():
            opened.set()

    saving = threading.Thread(target=full.kv.save, args=(path,), daemon=True)
    using = threading.Thread(target=use_context, daemon=True)
    # save() waits until no other writer holds the temporary file.
    with open(f"{path}.plait-tmp", "wb") as draft:
        fcntl.flock(draft, fcntl.LOCK_EX)
        saving.start()
        saving.join(timeout=0.2)
        using.start()
        assert opened.wait(timeout=30)
        using.join(timeout=30)
        assert saving.is_alive()
        assert not path.exists()
    saving.join(timeout=30)
    assert path.read_bytes() == full.kv.to_bytes()


def test_errors_name_files_that_cannot_be_read_or_written(full, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "text").write_text("no state, but some bytes of text")
    (tmp_path / "empty").touch()
    cases = [
        (lambda p: full.kv.save(p), "none/a.state", "No such file"),
        (lambda p: full.kv.save(p), "fifo", "not a regular file"),
        (lambda p: full.kv.save(p), "", "not a regular file"),
        (lambda p: full.kv.load(p), "none.state", "No such file"),
        (lambda p: full.kv.load(p), "fifo", "not a regular file"),
        (lambda p: full.kv.load(p), "", "not a regular file"),
        (lambda p: full.kv.load(p), "text", "not a saved state"),
        (lambda p: full.kv.load(p), "empty", "not a saved state"),
    ]
    for call, name, message in cases:
        path = tmp_path / name
        with pytest.raises(plait.StateError, match=message) as error:
            call(path)
        assert str(path) in str(error.value)
    with pytest.raises(TypeError, match="path"):
        full.kv.save(None)


def test_links_and_modes_stay(full, tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.touch()
    target.chmod(0o640)
    link.symlink_to(target)
    full.kv.save(link)
    assert link.is_symlink()
    assert target.read_bytes() == full.kv.to_bytes()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


@pytest.mark.goal("G8")
def test_a_full_disk_keeps_the_old_file(full, tmp_path):  # G8
    """A limit on the size of files simulates a full disk at any point."""
    path = tmp_path / "a.state"
    full.kv.save(path, seq=1)
    code = textwrap.dedent("""
        import resource, signal, sys
        import plait
        from pathlib import Path
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        model, path = plait.Model(sys.argv[1]), Path(sys.argv[2])
        old = path.read_bytes()
        with plait.Context(model, n_ctx=64, n_seq_max=4, threads=1) as ctx:
            ctx.kv.from_bytes(old)
            batch = plait.Batch()
            batch.add_sequence(range(3, 50))
            ctx.decode(batch)
            size = len(ctx.kv.to_bytes())
            for limit in [*range(0, size, 1024), size - 1]:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
                try:
                    ctx.kv.save(path)
                except plait.StateError as error:
                    assert "File too large" in str(error), error
                else:
                    raise SystemExit(f"{limit} of {size} bytes were enough")
                assert path.read_bytes() == old
                assert list(path.parent.iterdir()) == [path]
    """)
    tiny_path = gguf_writer.tiny_llama(tmp_path.parent / f"{tmp_path.name}.gguf")
    subprocess.run([sys.executable, "-c", code, tiny_path, path], check=True)


SAVER = textwrap.dedent("""
    import sys
    import plait
    with plait.Context(plait.Model(sys.argv[1]), n_ctx=4096, threads=1) as ctx:
        contents = [open(name, "rb").read() for name in sys.argv[3:]]
        print("ready", flush=True)
        while True:
            for data in contents:
                ctx.kv.from_bytes(data)
                ctx.kv.save(sys.argv[2])
""")


@pytest.mark.goal("G8")
@pytest.mark.parametrize("n_kills", [25, pytest.param(200, marks=pytest.mark.slow)])
def test_a_kill_at_any_time_leaves_a_valid_file(
    tiny, tiny_path, tmp_path, n_kills, record_property
):  # G8
    path = tmp_path / "a.state"
    names = [tmp_path / "one", tmp_path / "two"]
    with plait.Context(tiny, n_ctx=4096, threads=1) as ctx:
        for name, n in zip(names, (3000, 4000), strict=True):
            ctx.kv.clear()
            for half in range(2):
                feed(ctx, tokens(n // 2, half), 0, logits="none")
            ctx.kv.save(name)
        allowed = [name.read_bytes() for name in names]
        ctx.kv.load(names[0])
        ctx.kv.save(path)
        rng = random.Random(3)
        seen = set()
        n = 0
        while n < n_kills or (len(seen) < 2 and n < 20 * n_kills):  # a busy machine saves rarely
            n += 1
            saver = subprocess.Popen(
                [sys.executable, "-c", SAVER, tiny_path, path, *names],
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            assert saver.stdout.readline() == "ready\n"
            time.sleep(rng.uniform(0, 0.03 * (1 + (n - 1) // n_kills)))  # a slow one saves late
            saver.send_signal(signal.SIGKILL)
            saver.wait()
            saver.stdout.close()
            seen.add(allowed.index(path.read_bytes()))
            ctx.kv.load(path)
            left = {p.name for p in tmp_path.iterdir()} - {"a.state", "one", "two"}
            assert left <= {"a.state.plait-tmp"}
        ctx.kv.save(path)
        assert not (tmp_path / "a.state.plait-tmp").exists()
        assert seen == {0, 1}
    record_property("figure", f"{n} kills, 0 torn files")


# -- every architecture ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_architecture_round_trips(any_model, kind):  # S4-10
    model = any_model
    options = {"kv": kind, "n_ctx": 128, "n_seq_max": 3}
    n_vocab = min(model.n_vocab, 288)

    def prompt(n, seed):
        return tokens(n, seed, n_vocab)

    with made(model, **options) as one, made(model, **options) as other:
        if one.kv.kind == "none":
            other.kv.from_bytes(one.kv.to_bytes())
            return
        if one.kv.kind == "cross":
            one.encode(batch((prompt(9, 7), 0), (prompt(5, 8), 1), logits="none"))
        feed(one, prompt(40, 0), 0)
        feed(one, prompt(30, 1), 1)
        one.kv.seq_cp(0, 2)
        feed(one, prompt(25, 2), 0)
        data = one.kv.to_bytes()
        other.kv.from_bytes(data)
        assert other.kv.to_bytes() == data
        more = prompt(6, 3)
        for seq in range(3):
            assert same_bits(feed(one, more, seq), feed(other, more, seq)), seq
        data = one.kv.to_bytes(2)
        other.kv.clear()
        other.kv.from_bytes(data, seq=1)
        assert same_bits(feed(one, more, 2), feed(other, more, 1))
        one.kv.copy_to(other)
        assert one.kv.to_bytes() == other.kv.to_bytes()


class AlarmError(Exception):
    pass


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_in_any_microbatch_leaves_the_bytes_as_they_were(any_model, kind):  # S4-08
    """The function of an edit raises in the n-th microbatch of a call, for each n."""
    n_vocab = min(any_model.n_vocab, 288)
    with made(any_model, kv=kind, n_seq_max=3, n_ubatch=4, n_batch=64) as ctx:
        if ctx.kv.kind == "none":
            pytest.skip("nothing is remembered")
        if ctx.kv.kind == "cross":
            ctx.encode(batch(*((tokens(3, seq, n_vocab), seq) for seq in range(3)), logits="none"))
        feed(ctx, tokens(9, 1, n_vocab), 0, logits="none")
        feed(ctx, tokens(5, 2, n_vocab), 1, logits="none")
        ctx.kv.seq_cp(0, 2)
        data = ctx.kv.to_bytes()
        much = batch(*((tokens(6, 3 + seq, n_vocab), seq) for seq in range(3)))
        calls = left = 0

        def fail(rows):
            nonlocal calls, left
            calls += 1
            left -= 1
            if left == 0:
                raise AlarmError
            return rows

        failed = 0
        with ctx.edit("blk.0.l_out", fail, mode="replace"):
            for n in range(1, 20):
                left, calls = n, 0
                try:
                    ctx.decode(much)
                    break
                except AlarmError:
                    failed += 1
                    assert ctx.kv.to_bytes() == data, f"after call {n} of the function"
        assert failed == calls >= 4
        with made(any_model, kv=kind, n_seq_max=3, n_ubatch=4) as other:
            other.kv.from_bytes(data)
            other.decode(much)
            assert ctx.kv.to_bytes() == other.kv.to_bytes() != data


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_ends_a_call_in_the_middle_the_bytes_are_the_same(any_model, kind):  # S4-08
    """A signal between two nodes of one of many microbatches, for every kind of memory."""

    def alarm(*_):
        raise AlarmError

    if "position_embd.weight" in any_model.tensors:
        pytest.skip("its sequences are too short to be interrupted")
    n_vocab = min(any_model.n_vocab, 288)
    # A token a microbatch: the call takes several times as long as the longest delay.
    with made(any_model, kv=kind, n_ctx=4096, n_seq_max=3, n_ubatch=1, n_batch=12000) as ctx:
        if ctx.kv.kind == "none":
            pytest.skip("nothing is remembered")
        if ctx.kv.kind == "cross":
            ctx.encode(batch(*((tokens(5, seq, n_vocab), seq) for seq in range(3)), logits="none"))
        feed(ctx, tokens(50, 1, n_vocab), 0)
        feed(ctx, tokens(30, 2, n_vocab), 1)
        ctx.kv.seq_cp(0, 2)
        data = ctx.kv.to_bytes()
        step = [(tokens(3, 4, n_vocab), seq) for seq in range(3)]
        long = [(tokens(4000, seq, n_vocab), seq) for seq in range(3)]
        before = signal.signal(signal.SIGALRM, alarm)
        try:
            much = batch(*long, logits="none")
            for delay in (0.007, 0.012, 0.017):
                signal.setitimer(signal.ITIMER_REAL, delay)
                try:
                    ctx.decode(much)
                except AlarmError:
                    unchanged = ctx.kv.to_bytes() == data
                    assert unchanged
                    continue
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                pytest.fail(f"all of it took less than {delay} s")
        finally:
            signal.signal(signal.SIGALRM, before)
        with made(any_model, kv=kind, n_ctx=4096, n_seq_max=3, n_ubatch=4) as other:
            other.kv.from_bytes(data)
            assert same_bits(ctx.decode(batch(*step)).logits, other.decode(batch(*step)).logits)
