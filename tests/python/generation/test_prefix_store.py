"""PrefixStore: prefixes that other processes and later runs do not compute again."""

from __future__ import annotations

import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc
from pathlib import Path

import numpy as np
import plait
import pytest
from python.drive import tokens

from python import gguf_writer, lora_models

PROMPT = tokens(60)
pytestmark = pytest.mark.filterwarnings("ignore:generate. a prompt has")


@pytest.fixture
def store(tmp_path):
    return plait.PrefixStore(tmp_path / "store")


def opened(store):
    """Return another object of the same store, as another process has it."""
    return plait.PrefixStore(store.path, store.max_bytes)


def run(model, prompts, store, n=4, **options):
    """Return the usage, tokens and the bits of all logits of each prompt."""
    rows = {}

    def sampler(row, seq):
        rows.setdefault(seq, []).append(row.copy())
        return int(row.argmax())

    if options.pop("given", False) or isinstance(model, plait.Context):
        done = plait.complete(model, prompts, n, sampler, prefixes=store)
    else:
        with plait.Context(model, **{"n_ctx": 128, "n_seq_max": 4, "threads": 1} | options) as ctx:
            done = plait.complete(ctx, prompts, n, sampler, prefixes=store)
            assert ctx.kv.n_used == 0
            assert len([ctx.sequence() for _ in range(ctx.n_seq_max)]) == ctx.n_seq_max
    return [(one.usage.n_cached, one.tokens, np.array(rows[one.index])) for one in done]


def assert_same(found, wanted):
    for (_, some, rows), (_, others, expected) in zip(found, wanted, strict=True):
        assert some == others
        assert rows.tobytes() == expected.tobytes()


def entries(store):
    return sorted(store.path.glob("*/*.prefix"))


# -- hits ------------------------------------------------------------------------------------------------


def test_every_kind_of_memory_loads_what_another_has_computed(any_model, store):
    try:
        plait.complete(any_model, [[5]], 1)
    except (plait.UnsupportedError, plait.BatchError) as error:
        pytest.skip(str(error))
    n_vocab = any_model.n_vocab
    prompts = [tokens(40, 1, n_vocab) + tokens(5, seed, n_vocab) for seed in (2, 3)]
    wanted = run(any_model, prompts, None)
    first = run(any_model, prompts, store)
    again = run(any_model, prompts, opened(store))
    assert_same(first, wanted)
    assert_same(again, wanted)
    if any_model.arch == "t5":  # what it computes depends on the input of its encoder
        assert not entries(store)
        return
    assert [n for n, _, _ in again] == [44, 44]
    # The end of what both have in common was saved, too.
    other = [tokens(40, 1, n_vocab) + tokens(7, 4, n_vocab)]
    found = run(any_model, other, opened(store))
    assert found[0][0] == 40
    assert_same(found, run(any_model, other, None))


@pytest.mark.parametrize("kv", ["unified", "streams"])
@pytest.mark.parametrize("cache_type", ["f32", "bf16", "q8_0", "q5_1", "q4_0", "iq4_nl"])
def test_cache_types(tiny, store, kv, cache_type):
    options = {"kv": kv, "type_k": cache_type, "type_v": cache_type}
    wanted = run(tiny, [PROMPT], None, **options)
    assert_same(run(tiny, [PROMPT], store, **options), wanted)
    again = run(tiny, [PROMPT], opened(store), **options)
    assert again[0][0] == 59
    assert_same(again, wanted)


@pytest.mark.parametrize("n_seq_max", [1, 2, 8])
def test_long_prompts_and_what_they_share(tiny, store, n_seq_max):
    options = {"n_ctx": 1024, "n_seq_max": n_seq_max}
    long = tokens(700, 5)
    run(tiny, [long], store, n_ctx=1024)
    size = store.nbytes
    for at in (100, 256, 400, 600, 699):
        prompt = long[:at] + tokens(20, at)
        found = run(tiny, [prompt], opened(store), **options)
        assert found[0][0] == at
        assert_same(found, run(tiny, [prompt], None, **options))
        again = run(tiny, [prompt], opened(store), **options)
        assert again[0][0] == at + 19
        assert_same(again, found)
    if n_seq_max > 1:  # one sequence leaves no room to cut off what is stored already
        assert store.nbytes < 2 * size


def test_a_context_with_less_room_loads_what_fits(tiny, store):
    run(tiny, [tokens(700, 5)], store, n_ctx=1024)
    prompt = [*tokens(700, 5)[:300], 7]
    found = run(tiny, [prompt], opened(store), n_ctx=310, kv_cells=310)
    assert found[0][0] == 256  # the next entry has 256 more
    assert_same(found, run(tiny, [prompt], None, n_ctx=310))


def test_generate_for_a_model(tiny, store):
    first = run(tiny, [PROMPT, [*PROMPT[:30], 9]], store, given=True)
    again = run(tiny, [[*PROMPT[:30], 9], PROMPT], opened(store), given=True)
    assert [n for n, _, _ in again] == [30, 59]
    assert_same(again, first[::-1])


def test_an_engine_loads_and_saves(tiny, store):
    with plait.Engine(tiny, n_ctx=128, prefixes=store) as engine:
        first = engine.complete_sync(PROMPT, 5)
        assert engine.complete_sync(PROMPT, 5).usage.n_cached == 59
    with plait.Engine(tiny, n_ctx=128, n_seq_max=2, prefixes=opened(store)) as engine:
        again = engine.complete_sync(PROMPT, 5)
    assert (first.usage.n_cached, again.usage.n_cached) == (0, 59)
    assert again == first


def test_scores(tiny, store):
    texts = [[5, 6], [7], [8, 9, 10]]
    wanted = plait.score(tiny, PROMPT, texts)
    for _ in range(2):
        found = plait.score(tiny, PROMPT, texts, prefixes=opened(store))
        for one, other in zip(found, wanted, strict=True):
            assert one.logprobs.tobytes() == other.logprobs.tobytes()
    with plait.Context(tiny, n_ctx=128, n_seq_max=4) as ctx:
        plait.score(ctx, PROMPT, texts, prefixes=store)
        before = ctx.stats.tokens
        plait.score(ctx, PROMPT, texts, prefixes=store)
        assert (
            ctx.stats.tokens - before == 1 + 1 + 2
        )  # the last of the context, all but the last of each


# -- misses ----------------------------------------------------------------------------------------------


def other_weight(path: Path, target: Path) -> Path:
    """Write a copy of a model in which one bit of one weight differs, not in the middle of a tensor."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    target.write_bytes(data)
    return target


def test_another_model_misses(tiny, tiny_path, store, tmp_path):
    run(tiny, [PROMPT], store)
    for other in (
        plait.Model(other_weight(tiny_path, tmp_path / "other.gguf")),
        plait.Model(gguf_writer.tiny_llama(tmp_path / "seed.gguf", seed=5)),
    ):
        found = run(other, [PROMPT], opened(store))
        assert found[0][0] == 0
        assert_same(found, run(other, [PROMPT], None))
    copy = plait.Model(shutil.copy(tiny_path, tmp_path / "copy.gguf"))
    assert run(copy, [PROMPT], opened(store))[0][0] == 59


@pytest.mark.parametrize("change", ["replaced", "removed", "another folder"])
def test_a_model_whose_path_leads_to_another_file_is_not_stored(
    tiny_path, store, tmp_path, monkeypatch, caplog, change
):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    other_weight(tiny_path, there / "m.gguf")
    shutil.copy(tiny_path, here / "m.gguf")
    monkeypatch.chdir(here)
    model = plait.Model("m.gguf")
    if change == "another folder":
        monkeypatch.chdir(there)
    elif change == "replaced":
        os.replace(there / "m.gguf", "m.gguf")
    else:
        os.unlink("m.gguf")
    wanted = run(model, [PROMPT], None)
    for _ in range(2):
        found = run(model, [PROMPT], store)
        assert found[0][0] == 0
        assert_same(found, wanted)
    assert re.search(r"PrefixStore: not used for this context: .*m\.gguf", caplog.text)
    if change != "removed":
        assert run(plait.Model("m.gguf"), [PROMPT], store)[0][0] == 0


@pytest.mark.parametrize(
    "options",
    [
        {"type_k": "q8_0"}, {"type_v": "f32"}, {"kv": "streams"}, {"flash_attention": False}, {"isa": "scalar"},
        {"invariant": False},
    ],
)  # fmt: skip
def test_other_options_miss(tiny, store, options):
    run(tiny, [PROMPT], store)
    found = run(tiny, [PROMPT], opened(store), **options)
    assert found[0][0] == 0
    if options != {"invariant": False}:
        assert_same(found, run(tiny, [PROMPT], None, **options))
    again = run(tiny, [PROMPT], opened(store), **options)
    assert again[0][0] == 59
    assert_same(again, found)


def test_a_device_gives_the_bits_of_the_first_computation(tiny, store):
    if not any(device.name.startswith("vulkan") for device in plait.devices()):
        pytest.skip("no Vulkan device")
    for layers in (None, 1):
        options = {"backend": "vulkan", "n_gpu_layers": layers}
        first = run(tiny, [PROMPT], store, **options)
        again = run(tiny, [PROMPT], opened(store), **options)
        assert [first[0][0], again[0][0]] == [0, 59]
        assert_same(again, first)
    assert run(tiny, [PROMPT], opened(store))[0][0] == 0


def test_adapters_and_control_vectors(store, tmp_path):
    metadata, weights = lora_models.model("llama")
    model = plait.Model(gguf_writer.write(tmp_path / "m.gguf", metadata, weights))
    adapters = []
    for seed in (1, 2):
        deltas = lora_models.deltas(weights, lora_models.matrices(weights), 4, seed)
        path = gguf_writer.write(
            tmp_path / f"{seed}.gguf", lora_models.adapter_metadata("llama", 8.0), deltas
        )
        adapters.append(model.load_lora(path))
    one, two = adapters
    vector = np.full((model.n_layer, model.n_embd), 0.5, np.float32)
    cases = [
        lambda ctx: None,
        lambda ctx: ctx.set_lora({one: 1.0}),
        lambda ctx: ctx.set_lora({one: 0.5}),
        lambda ctx: ctx.set_lora({two: 1.0}),
        lambda ctx: ctx.set_lora({two: 1.0, one: 1.0}),
        lambda ctx: ctx.set_control_vector(vector),
        lambda ctx: ctx.set_control_vector(-vector),
    ]
    for n_cached in (0, 59):
        for change in cases:
            found = []
            for given in (None, opened(store)):
                with plait.Context(model, n_ctx=128, n_seq_max=2) as ctx:
                    change(ctx)
                    found.append(run(ctx, [PROMPT], given))
            assert found[1][0][0] == n_cached
            assert_same(found[1], found[0])
    assert len(store) == len(cases)


def test_an_adapter_whose_file_was_replaced_is_not_stored(store, tmp_path, caplog):
    metadata, weights = lora_models.model("llama")
    model = plait.Model(gguf_writer.write(tmp_path / "m.gguf", metadata, weights))
    found = []
    for seed in (1, 2):
        deltas = lora_models.deltas(weights, lora_models.matrices(weights), 4, seed)
        path = tmp_path / "adapter.gguf"
        lora_models.write_adapter(tmp_path / "new.gguf", "llama", deltas)
        os.replace(tmp_path / "new.gguf", path)
        found.append(model.load_lora(path))
    for adapter in found * 2:
        with plait.Context(model, n_ctx=128, n_seq_max=2) as ctx:
            ctx.set_lora({adapter: 1.0})
            again = run(ctx, [PROMPT], store)
            assert_same(again, run(ctx, [PROMPT], None))
    assert again[0][0] == 59  # of the last one, whose file is there
    assert caplog.text.count("PrefixStore: not used with these adapters: ") == 2


def test_changes_while_an_engine_runs(tiny, store):
    vector = np.full((tiny.n_layer, tiny.n_embd), 0.5, np.float32)
    plain = plait.complete(tiny, [PROMPT], 3)[0]
    with plait.Context(tiny, n_ctx=128, n_seq_max=4) as ctx:
        ctx.set_control_vector(vector)
        steered = plait.complete(ctx, [PROMPT], 3)[0]
    assert steered.logprobs != plain.logprobs
    with (
        plait.Context(tiny, n_ctx=512, n_seq_max=4) as ctx,
        plait.Engine(ctx, prefixes=store) as engine,
    ):
        for _ in range(2):
            assert engine.complete_sync(PROMPT, 3).logprobs == plain.logprobs
            ctx.set_control_vector(vector)
            assert engine.complete_sync(PROMPT, 3).logprobs == steered.logprobs
            ctx.set_control_vector(None)
        # A request that runs during the change belongs to neither.
        other = tokens(200, 9)
        events = engine.stream_sync(other, 20)
        next(events)
        ctx.set_control_vector(vector)
        list(events)
        ctx.set_control_vector(None)
        n = len(store)
        with ctx.edit("l_out.0", vector[0]):
            edited = engine.complete_sync(PROMPT, 3)
        assert edited.usage.n_cached == 0
        assert edited.logprobs != plain.logprobs
        assert len(store) == n
        assert engine.complete_sync(PROMPT, 3).logprobs == plain.logprobs
    assert engine.closed


# -- damage ----------------------------------------------------------------------------------------------


def test_damaged_entries_are_removed(tiny, store):
    wanted = run(tiny, [PROMPT], store)
    (path,) = entries(store)
    whole = path.read_bytes()
    rng = random.Random(1)
    spots = [0, 9, 20, 60, 300, 330, 400, len(whole) - 1, *rng.sample(range(len(whole)), 40)]
    damaged = [
        whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :] for at in spots
    ]
    damaged += [
        b"",
        whole[:7],
        whole[: len(whole) // 2],
        whole[:-1],
        whole + b"a",
        bytes(len(whole)),
    ]
    for data in damaged:
        path.write_bytes(data)
        found = run(tiny, [PROMPT], opened(store))
        assert found[0][0] == 0
        assert_same(found, wanted)
        assert path.read_bytes() == whole  # it was computed and saved again
    # An entry under the name of another, or of other conditions.
    run(tiny, [tokens(60, 7)], store)
    run(tiny, [PROMPT], store, type_k="q8_0")
    for other in entries(store):
        if other != path:
            shutil.copy(other, path)
            assert run(tiny, [PROMPT], opened(store))[0][0] == 0
            assert path.read_bytes() == whole


def test_a_damaged_number_of_tokens_allocates_no_more_than_the_file(tiny, store):
    run(tiny, [PROMPT], store)
    (path,) = entries(store)
    data = bytearray(path.read_bytes())
    data[8:16] = (2**31 - 1).to_bytes(8, "little")
    path.write_bytes(data)
    tracemalloc.start()
    try:
        assert run(tiny, [PROMPT], opened(store))[0][0] == 0
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 30


def test_a_damaged_digest_of_a_model_is_computed_again(tiny, store):
    wanted = run(tiny, [PROMPT], store)
    (path,) = store.path.glob("*.digest")
    whole = path.read_bytes()
    for data in (
        bytes([whole[0] ^ 0x80]) + whole[1:],
        whole[:-1] + bytes([whole[-1] ^ 1]),
        bytes(len(whole)),
        whole[:32],
        b"",
    ):
        path.write_bytes(data)
        found = run(tiny, [PROMPT], opened(store))
        assert found[0][0] == 59
        assert_same(found, wanted)
        assert path.read_bytes() == whole


def test_a_missing_part_of_a_chain_shortens_it(tiny, store):
    long = tokens(700, 5)
    wanted = run(tiny, [long], store, n_ctx=1024)
    files = sorted(entries(store), key=lambda path: path.stat().st_mtime_ns)
    assert len(files) == 3  # 0 to 256 was used last
    files[1].unlink()
    found = run(tiny, [long], opened(store), n_ctx=1024)
    assert found[0][0] == 256
    assert_same(found, wanted)
    assert run(tiny, [long], opened(store), n_ctx=1024)[0][0] == 699


def holding(store, n):
    """Return the file of the entry with `n` tokens."""
    (found,) = (p for p in entries(store) if int.from_bytes(p.read_bytes()[8:16], "little") == n)
    return found


@pytest.fixture
def short_segments(monkeypatch):
    monkeypatch.setattr("plait.generation.stored_prefixes.MAX_SEGMENT", 32)


@pytest.mark.usefixtures("short_segments")
def test_an_open_store_does_not_mistake_an_entry_for_one_that_was_removed(tiny, store):
    whole = tokens(64)
    longer = [*whole, *tokens(5, 1)]
    other = opened(store)
    run(tiny, [whole], other)  # 0 to 32 and 32 to 64
    holding(store, 64).unlink()
    run(tiny, [whole[:48]], store)
    run(tiny, [whole], store)  # 48 to 64
    wanted = run(tiny, [longer], None)
    for given, n in ((other, 64), (opened(store), 68)):
        found = run(tiny, [longer], given)
        assert found[0][0] == n
        assert_same(found, wanted)


@pytest.mark.usefixtures("short_segments")
def test_a_parent_is_removed_and_its_tokens_are_divided_differently(tiny, store):
    whole = tokens(64)
    branch = [*whole[:40], *tokens(10, 1)]
    run(tiny, [whole], store)
    run(tiny, [branch], store)  # 40 to 50, whose parent is 32 to 64
    holding(store, 64).unlink()
    run(tiny, [whole[:48]], store)
    run(tiny, [whole], store)  # 48 to 64
    wanted = run(tiny, [branch], None)
    for n in (40, 49):
        found = run(tiny, [branch], opened(store))
        assert found[0][0] == n
        assert_same(found, wanted)


@pytest.mark.usefixtures("short_segments")
def test_tokens_behind_a_removed_entry_are_saved_again(tiny, store):
    long = tokens(88)
    run(tiny, [long[:40]], store)
    run(tiny, [long], store)
    holding(store, 40).unlink()
    assert [run(tiny, [long], opened(store))[0][0] for _ in range(2)] == [32, 87]


def test_a_disk_that_refuses_does_not_stop_generation(tiny, store, monkeypatch, caplog):
    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    wanted = run(tiny, [PROMPT], None)
    monkeypatch.setattr("plait.generation.prefix_store.replace_file", refuse)
    assert_same(run(tiny, [PROMPT], store), wanted)
    assert "No space left on device" in caplog.text


# -- the budget ------------------------------------------------------------------------------------------


def test_the_least_recently_used_entries_are_removed(tiny, store):
    prompts = [tokens(60, seed) for seed in range(8)]
    run(tiny, prompts[:1], store)
    each = entries(store)[0].stat().st_size
    small = plait.PrefixStore(store.path, 4 * each + 500)
    for prompt in prompts[1:4]:
        run(tiny, [prompt], small)
    run(tiny, prompts[:1], small)  # used again
    for prompt in prompts[4:6]:
        run(tiny, [prompt], small)
        assert small.nbytes <= small.max_bytes
    assert [run(tiny, [prompts[i]], None)[0][0] for i in range(2)] == [0, 0]
    with plait.Context(tiny, n_ctx=128) as ctx:
        found = [n for n, _, _ in (run(ctx, [prompts[i]], small)[0] for i in (0, 3, 4, 5))]
    assert found == [59] * 4
    assert run(tiny, [prompts[1]], small)[0][0] == 0


@pytest.mark.usefixtures("short_segments")
def test_an_entry_does_not_displace_its_parents(tiny, store):
    long = tokens(128)
    run(tiny, [long[:64]], store)
    run(tiny, [tokens(32, 1)], store)  # the last used one
    small = plait.PrefixStore(store.path, store.nbytes + 500)
    run(tiny, [long], small)  # 64 to 96 displaces the other prompt, and 96 to 128 has no room
    kept = entries(store)
    assert [run(tiny, [long], opened(small))[0][0] for _ in range(2)] == [96, 96]
    assert entries(store) == kept


@pytest.mark.parametrize("max_bytes", [0, 100, 3000])
def test_an_entry_larger_than_the_budget_is_not_stored(tiny, tmp_path, max_bytes):
    store = plait.PrefixStore(tmp_path / "small", max_bytes)
    for _ in range(2):
        assert run(tiny, [PROMPT], store)[0][0] == 0
    assert len(store) == 0
    assert store.nbytes <= max(max_bytes, 64)


def test_clear(tiny, store):
    run(tiny, [PROMPT], store)
    assert len(store) == 1
    assert store
    store.clear()
    assert len(store) == 0
    assert store
    assert run(tiny, [PROMPT], store)[0][0] == 0


# -- processes and threads ---------------------------------------------------------------------------------

PROGRAM = """
    import sys, plait
    from python.drive import tokens
    model, store = plait.Model(sys.argv[1]), plait.PrefixStore(sys.argv[2], int(sys.argv[4]))
    for seed in range(int(sys.argv[3])):
        (one,) = plait.complete(model, [tokens(60, seed % 20)], 4, prefixes=store)
        print(one.usage.n_cached, one.tokens, one.logprobs, flush=True)
"""


def process(path, store, n, **options):
    command = [
        sys.executable,
        "-c",
        textwrap.dedent(PROGRAM),
        path,
        store.path,
        str(n),
        str(store.max_bytes),
    ]
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, **options)


def test_another_process_computes_nothing_again(tiny_path, store):
    first, _ = process(tiny_path, store, 3).communicate(timeout=60)
    again, _ = process(tiny_path, store, 3).communicate(timeout=60)
    assert [line.split()[0] for line in first.splitlines()] == ["0"] * 3
    assert [line.split()[0] for line in again.splitlines()] == ["59"] * 3
    assert [line.split(" ", 1)[1] for line in again.splitlines()] == [
        line.split(" ", 1)[1] for line in first.splitlines()
    ]


@pytest.mark.parametrize("rounds", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_a_kill_while_writing_leaves_a_usable_store(tiny, tiny_path, tmp_path, rounds):
    # A small budget makes the process write and remove all the time.
    store = plait.PrefixStore(tmp_path / "store", 80_000)
    prompts = [tokens(60, seed) for seed in range(20)]
    wanted = run(tiny, prompts, None)
    rng = random.Random(2)
    for _ in range(rounds):
        with process(tiny_path, store, 100_000) as running:
            running.stdout.readline()
            time.sleep(rng.uniform(0, 0.15))
            running.send_signal(signal.SIGKILL)
        assert_same(run(tiny, prompts, opened(store)), wanted)
        assert store.nbytes <= store.max_bytes
        assert not list(store.path.glob("**/*.tmp"))
    run(tiny, prompts[:1], store)
    assert run(tiny, prompts[:1], opened(store))[0][0] == 59


def test_processes_and_threads_share_a_store(tiny, tiny_path, tmp_path):
    store = plait.PrefixStore(tmp_path / "store", 100_000)
    prompts = [tokens(60, seed) for seed in range(20)]
    wanted = run(tiny, prompts, None)
    errors = []

    def work(seed):
        try:
            order = random.Random(seed).sample(range(20), 20)
            for given in (store, opened(store)):
                found = run(tiny, [prompts[i] for i in order], given)
                assert_same(found, [wanted[i] for i in order])
        except BaseException as error:
            errors.append(error)

    others = [process(tiny_path, store, 40) for _ in range(2)]
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = [other.communicate(timeout=60)[0].splitlines() for other in others]
    assert errors == []
    assert all(other.returncode == 0 for other in others)
    for one, two in zip(*lines, strict=True):
        assert one.split(" ", 1)[1] == two.split(" ", 1)[1]
    assert store.nbytes <= store.max_bytes


# -- misuse ------------------------------------------------------------------------------------------------


def test_misuse(tiny, store, tmp_path):
    with pytest.raises(TypeError, match="prefixes: expected a PrefixStore, got str"):
        plait.complete(tiny, "a", 1, prefixes=str(store.path))
    with pytest.raises(TypeError, match="prefixes"):
        plait.Engine(tiny, prefixes=str(store.path))
    with pytest.raises(TypeError, match="score: prefixes: expected a PrefixStore"):
        plait.score(tiny, [5], [[6]], prefixes=True)
    with (
        plait.Engine(tiny, n_ctx=32) as engine,
        pytest.raises(TypeError, match="an Engine has its own"),
    ):
        plait.complete(engine, "a", 1, prefixes=store)
    with pytest.raises(ValueError, match="max_bytes"):
        plait.PrefixStore(tmp_path, -1)
    (tmp_path / "file").write_text("a")
    with pytest.raises(OSError, match="file"):
        plait.PrefixStore(tmp_path / "file" / "store")
    other = pickle.loads(pickle.dumps(store))
    assert (other.path, other.max_bytes) == (store.path, store.max_bytes)
    assert repr(other).startswith("<plait.PrefixStore ")
