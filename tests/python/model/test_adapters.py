"""Low-rank adapters: the logits equal those of merged weights, for every target and several adapters,
without new plans.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import plait
import pytest
from python.drive import batch, feed, same_bits, tokens
from python.reference_data import model_path

from python import gguf_writer, lora_models

IDS = tokens(24, seed=5)
ALPHA, RANK = 8.0, 4


class Case:
    """A model and its adapters by name, each with some targets."""

    def __init__(self, folder, name: str) -> None:
        self.folder, self.name = folder, name
        self.metadata, self.weights = lora_models.model(name)
        self.arch = self.metadata["general.architecture"]
        self.model = plait.Model(self.write("base", self.weights))
        self.tensors: dict[str, lora_models.Tensors] = {}

    def write(self, stem: str, weights: lora_models.Tensors):
        return gguf_writer.write(self.folder / f"{stem}.gguf", self.metadata, weights)

    def adapter(self, stem: str, targets: list[str], seed: int, rank: int = RANK) -> plait.Adapter:
        self.tensors[stem] = lora_models.deltas(self.weights, targets, rank, seed)
        path = self.folder / f"{stem}.lora.gguf"
        lora_models.write_adapter(path, self.arch, self.tensors[stem], ALPHA)
        return self.model.load_lora(path)

    def merged(self, scales: dict[str, float], rank: int = RANK) -> np.ndarray:
        weights = self.weights
        for stem, scale in scales.items():
            weights = lora_models.merged(weights, self.tensors[stem], scale * ALPHA / rank)
        model = plait.Model(self.write("merged", weights))
        with context(model) as ctx:
            return feed(ctx, IDS).copy()


def context(model, **options):
    return plait.Context(model, **{"n_ctx": 64, "type_k": "f32", "type_v": "f32", **options})


def assert_close(got, want):
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-4 * np.abs(want).max())


@pytest.fixture(scope="module", params=["llama", "qwen2", "mixtral"])
def case(request, tmp_path_factory) -> Case:
    case = Case(tmp_path_factory.mktemp(request.param), request.param)
    every = lora_models.matrices(case.weights)
    case.all = case.adapter("all", every, seed=1)
    case.some = case.adapter("some", [n for n in every if ".attn_" in n], seed=2)
    case.others = case.adapter("others", [n for n in every if ".ffn_" in n], seed=3)
    return case


@pytest.fixture(scope="module")
def plain(case) -> np.ndarray:
    with context(case.model) as ctx:
        return feed(ctx, IDS).copy()


@pytest.mark.parametrize("scale", [1.0, -0.5, 0.25])
def test_every_matrix_at_once_gives_the_logits_of_merged_weights(case, plain, scale, isa):
    assert set(case.all.weights) == set(lora_models.matrices(case.weights))
    want = case.merged({"all": scale})
    assert np.abs(want - plain).max() > 0.1 * np.abs(plain).max()
    with context(case.model, isa=isa) as ctx:
        ctx.set_lora({case.all: scale})
        assert_close(feed(ctx, IDS), want)
    with context(case.model, isa=isa, n_ubatch=5, fuse=False) as ctx:
        ctx.set_lora({case.all: scale})
        assert_close(feed(ctx, IDS), want)


def test_each_target_alone(case, plain):
    for name in lora_models.matrices(case.weights):
        one = case.adapter("one", [name], seed=7)
        with context(case.model) as ctx:
            ctx.set_lora({one: 2.0})
            got = feed(ctx, IDS)
            assert_close(got, case.merged({"one": 2.0}))
            assert not same_bits(got, plain), name


def test_several_at_once_and_none_again(case, plain):
    scales = {"all": 0.5, "some": -1.0, "others": 2.0}
    with context(case.model) as ctx:
        ctx.set_lora({case.others: 2.0, case.some: -1.0, case.all: 0.5})
        got = feed(ctx, IDS).copy()
        assert_close(got, case.merged(scales))
        # They are summed in the order of loading, not of naming.
        ctx.kv.clear()
        ctx.set_lora({case.all: 0.5, case.some: -1.0, case.others: 2.0})
        assert same_bits(feed(ctx, IDS), got)
        for none in ({}, None):
            ctx.set_lora({case.all: 1.0})
            ctx.set_lora(none)
            ctx.kv.clear()
            assert same_bits(feed(ctx, IDS), plain)


def test_a_scale_of_zero_is_no_adapter(case, plain):
    with context(case.model) as ctx:
        ctx.set_lora({case.all: 0.0})
        np.testing.assert_array_equal(feed(ctx, IDS), plain)


def test_swapping_builds_no_plan_after_the_second_use(case):
    with context(case.model) as ctx:
        ctx.stats.reset()

        def step():
            feed(ctx, IDS[:1])
            ctx.kv.seq_rm(0, len(IDS))

        feed(ctx, IDS)
        step()
        for adapters in ({case.some: 1.0}, {case.others: 1.0}):
            ctx.set_lora(adapters)
            step()
        assert ctx.stats.plan_misses["new adapter set"] == 2
        built = ctx.stats.plans_built
        for i in range(10):
            for adapters in ({case.some: i / 10}, {case.others: -1.0 * i}, {}):
                ctx.set_lora(adapters)
                step()
        assert ctx.stats.plans_built == built


def test_adapters_control_vectors_and_edits_in_any_order(case):
    """The first of each kind enlarges the buffer of inputs, where the values of the others stay."""
    model, rng = case.model, np.random.default_rng(3)
    adapter = case.adapter("order", lora_models.matrices(case.weights), seed=6)
    vector = rng.normal(size=(model.n_layer, model.n_embd)).astype(np.float32)
    row = rng.normal(size=model.n_embd).astype(np.float32)

    def logits(order):
        with context(model) as ctx:
            edit = ctx.edit("l_out.0", row)
            change = {
                "adapter": lambda: ctx.set_lora({adapter: 0.7}),
                "control": lambda: ctx.set_control_vector(vector, 0),
                "edit": edit.__enter__,
            }
            for kind in order:
                change[kind]()
                ctx.kv.clear()
                got = feed(ctx, IDS).copy()
            edit.__exit__(None, None, None)
        return got

    first, *others = [
        logits(order) for order in itertools.permutations(["adapter", "control", "edit"])
    ]
    assert all(same_bits(first, other) for other in others)


def test_contexts_of_one_model_have_separate_adapters(case, plain):
    with context(case.model) as one, context(case.model) as other, context(case.model) as neither:
        one.set_lora({case.some: 1.0})
        other.set_lora({case.others: 1.0})
        results = [feed(ctx, IDS).copy() for ctx in (one, other, neither)]
    assert_close(results[0], case.merged({"some": 1.0}))
    assert_close(results[1], case.merged({"others": 1.0}))
    assert same_bits(results[2], plain)


def test_the_same_bits_however_it_is_run(
    case,
):  # regardless of other sequences, batching and threads
    with context(case.model) as ctx:
        ctx.set_lora({case.all: 1.0})
        want = feed(ctx, IDS).copy()
    for options in ({"n_ubatch": 3}, {"threads": 1}, {"fuse": False}, {"graph_reuse": False}):
        with context(case.model, **options) as ctx:
            ctx.set_lora({case.all: 1.0})
            assert same_bits(feed(ctx, IDS), want), options
    with context(case.model, n_seq_max=3) as ctx:
        ctx.set_lora({case.all: 1.0})
        feed(ctx, tokens(9, seed=8), seq=1)
        got = [feed(ctx, [token]).copy() for token in IDS]
        assert same_bits(np.concatenate(got), want)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_K", "F16"])
def test_quantised_weights_of_the_model(tmp_path, kind, data_dir):
    """Adding a delta to a quantised product equals adding the exact delta to its result."""
    found = sorted(data_dir.glob(f"**/*{kind}*.gguf"))
    models = [plait.Model(path) for path in found]
    model = next((m for m in models if m.arch in ("llama", "qwen2")), None)
    if model is None:
        pytest.skip(f"no {kind} model in the reference data")
    weights = {name: np.empty(info.shape) for name, info in model.tensors.items()}
    target = "blk.0.ffn_down.weight"
    made = lora_models.deltas(weights, [target], RANK, seed=1)
    path = lora_models.write_adapter(tmp_path / "a.gguf", model.arch, made, ALPHA)
    adapter = model.load_lora(path)
    ids = tokens(9, n_vocab=min(model.n_vocab, 288))
    values = ("ffn_act.0", "ffn_out.0")
    with plait.Context(model, n_ctx=64) as ctx, ctx.capture(*values) as before:
        feed(ctx, ids)
    with plait.Context(model, n_ctx=64) as ctx:
        ctx.set_lora({adapter: 0.5})
        with ctx.capture(*values) as after:
            feed(ctx, ids)
    a, b = (made[f"{target}.lora_{part}"].astype(np.float64) for part in "ab")
    assert same_bits(before["ffn_act.0"], after["ffn_act.0"])
    delta = before["ffn_act.0"] @ a.T @ b.T * 0.5 * ALPHA / RANK
    assert_close(after["ffn_out.0"] - before["ffn_out.0"], delta)


def test_tensors_of_other_types(tmp_path):
    case = Case(tmp_path, "llama")
    target = "blk.1.ffn_up.weight"
    made = lora_models.deltas(case.weights, [target], 32, seed=3)
    with context(case.model) as ctx:
        plain = feed(ctx, IDS).copy()
    wants = {}
    for name, stored in {
        "f16": {key: value.astype(np.float16) for key, value in made.items()},
        "q8": {key: q8_0(value) for key, value in made.items()},
    }.items():
        path = lora_models.write_adapter(tmp_path / f"{name}.gguf", "llama", stored, alpha=None)
        with context(case.model) as ctx:
            ctx.set_lora({case.model.load_lora(path): 1.0})
            wants[name] = feed(ctx, IDS).copy()
    exact = context(plait.Model(case.write("m", lora_models.merged(case.weights, made, 1.0))))
    want = feed(exact, IDS)
    moved = np.abs(want - plain).max()
    assert np.abs(wants["f16"] - want).max() < 0.01 * moved
    assert np.abs(wants["q8"] - want).max() < 0.1 * moved


def q8_0(x: np.ndarray) -> gguf_writer.Raw:
    blocks = x.reshape(-1, 32)
    scale = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype(np.float16)
    codes = np.round(blocks / scale.astype(np.float32)).astype(np.int8)
    rows = np.concatenate([scale.view(np.uint8), codes.view(np.uint8)], axis=1)
    return gguf_writer.Raw("Q8_0", rows.reshape(x.shape[0], -1))


def test_adapters_of_rank_one_and_of_different_ranks(tmp_path):
    case = Case(tmp_path, "llama")
    one = lora_models.deltas(case.weights, ["blk.0.attn_q.weight"], 1, seed=1)
    two = lora_models.deltas(case.weights, ["blk.1.attn_q.weight", "output.weight"], 7, seed=2)
    path = lora_models.write_adapter(tmp_path / "a.gguf", "llama", one | two, ALPHA)
    weights = lora_models.merged(case.weights, one, ALPHA / 1)
    weights = lora_models.merged(weights, two, ALPHA / 7)
    with context(plait.Model(case.write("m", weights))) as ctx:
        want = feed(ctx, IDS).copy()
    with context(case.model) as ctx:
        ctx.set_lora({case.model.load_lora(path): 1.0})
        assert_close(feed(ctx, IDS), want)


@pytest.mark.parametrize("how", ["argument", "file"])
def test_rank_stabilised(tmp_path, how):
    case = Case(tmp_path, "llama")
    made = lora_models.deltas(case.weights, ["blk.0.ffn_up.weight"], 16, seed=1)
    said = {"adapter.lora.rank_stabilized": True} if how == "file" else {}
    path = lora_models.write_adapter(tmp_path / "a.gguf", "llama", made, ALPHA, **said)
    adapter = case.model.load_lora(path, rank_stabilized=True if how == "argument" else None)
    with context(plait.Model(case.write("m", lora_models.merged(case.weights, made, 2.0)))) as ctx:
        want = feed(ctx, IDS).copy()
    with context(case.model) as ctx:
        ctx.set_lora({adapter: 1.0})
        assert_close(feed(ctx, IDS), want)


def test_properties_of_an_adapter(tmp_path):
    case = Case(tmp_path, "llama")
    made = lora_models.deltas(case.weights, ["output.weight"], 2, seed=1)
    path = lora_models.write_adapter(
        tmp_path / "a.gguf", "llama", made, 3.5,
        **{"general.name": "pirate", "adapter.alora.invocation_tokens": np.array([7, 9], np.uint32)},
    )  # fmt: skip
    adapter = case.model.load_lora(str(path))
    assert (adapter.name, adapter.alpha, adapter.path) == ("pirate", 3.5, str(path))
    assert adapter.weights == ["output.weight"]
    assert adapter.invocation_tokens == [7, 9]
    assert adapter.metadata["adapter.type"] == "lora"
    assert "1 weights" in repr(adapter)
    with pytest.raises(TypeError, match="cannot be created from Python"):
        type(adapter)()


def test_a_tied_table_is_adapted_where_tokens_are_looked_up(tmp_path):
    case = Case(tmp_path, "llama")
    del case.weights["output.weight"]
    tied = plait.Model(case.write("tied", case.weights))
    made = lora_models.deltas(case.weights, ["token_embd.weight"], RANK, seed=1)
    path = lora_models.write_adapter(tmp_path / "a.gguf", "llama", made, ALPHA)
    untied = lora_models.merged(case.weights, made, ALPHA / RANK) | {
        "output.weight": case.weights["token_embd.weight"]
    }
    with context(plait.Model(case.write("untied", untied))) as ctx:
        want = feed(ctx, IDS).copy()
    with context(tied) as ctx:
        ctx.set_lora({tied.load_lora(path): 1.0})
        assert_close(feed(ctx, IDS), want)


def broken(case: Case, what: str):
    """Return metadata and tensors of an adapter with one defect."""
    made = dict(lora_models.deltas(case.weights, ["blk.0.attn_q.weight"], 4, seed=1))
    said = lora_models.adapter_metadata("llama")
    a, b = "blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b"
    match what:
        case "a model":
            said["general.type"] = "model"
        case "no type":
            del said["general.type"]
        case "another kind":
            said["adapter.type"] = "vera"
        case "another architecture":
            said["general.architecture"] = "qwen2"
        case "infinite alpha":
            said["adapter.lora.alpha"] = float("inf")
        case "alpha of text":
            said["adapter.lora.alpha"] = "8"
        case "token beyond":
            said["adapter.alora.invocation_tokens"] = np.array([999999], np.uint32)
        case "no tensors":
            made = {}
        case "half a pair":
            del made[b]
        case "another suffix":
            made["blk.0.attn_q.weight.lora_c"] = made[a]
        case "unknown weight":
            made = {k.replace("attn_q", "attn_z"): v for k, v in made.items()}
        case "a layer too many":
            made = {k.replace("blk.0", "blk.9"): v for k, v in made.items()}
        case "a norm":
            made = {k.replace("attn_q", "attn_norm"): v for k, v in made.items()}
        case "A of another width":
            made[a] = made[a][:, :-1].copy()
        case "A of another rank":
            made[a] = made[a][:-1].copy()
        case "B of another height":
            made[b] = made[b][:-1].copy()
        case "A on its side":
            made[a] = made[a].T.copy()
        case "integers":
            made[a] = np.ones(made[a].shape, np.int32)
    return said, made


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("a model", "general.type: expected 'adapter', got 'model'"), ("no type", "general.type"),
        ("another kind", "adapter.type: expected 'lora', got 'vera'"),
        ("another architecture", "general.architecture: expected 'llama', got 'qwen2'"),
        ("infinite alpha", "adapter.lora.alpha"), ("alpha of text", "adapter.lora.alpha"),
        ("token beyond", "token 999999"), ("no tensors", "no tensors"),
        ("half a pair", r"blk.0.attn_q.weight.lora_a.*no .lora_b"),
        ("another suffix", "lora_c"), ("unknown weight", "no tensor 'blk.0.attn_z.weight'"),
        ("a layer too many", "no tensor 'blk.9.attn_q.weight'"),
        ("a norm", "'blk.0.attn_norm.weight' must be a matrix"),
        ("A of another width", r"lora_a has shape \[4, 63\], expected \[4, 64\]"),
        ("A of another rank", r"lora_a has shape \[3, 64\], expected \[4, 64\]"),
        ("B of another height", r"lora_b has shape \[63, 4\], expected \[64, 4\]"),
        ("A on its side", r"lora_a has shape \[64, 4\], expected \[4, 64\]"),
        ("integers", "lora_a' holds integers"),
    ],
)  # fmt: skip
def test_adapters_of_other_models_are_refused(tmp_path, what, message):
    case = Case(tmp_path, "llama")
    path = gguf_writer.write(tmp_path / "a.gguf", *broken(case, what))
    with pytest.raises(plait.ModelError, match=message) as refused:
        case.model.load_lora(path)
    assert "a.gguf" in str(refused.value)


def test_a_norm_in_an_adapter_is_named(tmp_path):
    case = Case(tmp_path, "llama")
    made = lora_models.deltas(case.weights, ["output.weight"], 2, seed=1)
    made["output_norm.weight"] = np.ones(gguf_writer.WIDTH, np.float32)
    path = lora_models.write_adapter(tmp_path / "a.gguf", "llama", made)
    with pytest.raises(plait.UnsupportedError, match=r"'output_norm\.weight' belongs to a norm"):
        case.model.load_lora(path)


@pytest.mark.parametrize(
    "name", ["gpt2", "bert", "t5", "rwkv7", "jamba", "deepseek2", "gemma3n-a", "gemma4-a"]
)
def test_each_matrix_of_a_model_is_adapted_or_refused(tmp_path, data_dir, name):
    model = plait.Model(model_path(data_dir, name))
    roles = {
        re.sub(r"\d+", "", key): key for key, t in model.tensors.items() if len(t.shape) in (2, 3)
    }
    weights = {key: np.empty(model.tensors[key].shape) for key in roles.values()}
    refused, ids = set(), batch((tokens(3, 1, min(model.n_vocab, 288)), 0))
    with plait.Context(model, n_ctx=64) as ctx:
        for role, target in roles.items():
            ctx.set_lora(None)
            ctx.kv.clear()
            deltas = lora_models.deltas(weights, [target], RANK, seed=1)
            path = lora_models.write_adapter(tmp_path / "one.gguf", model.arch, deltas)
            try:
                ctx.set_lora({model.load_lora(path): 1.0})
            except plait.UnsupportedError:
                refused.add(role)
                continue
            if name == "t5":
                ctx.encode(ids)
            (ctx.encode if ctx.kv.kind == "none" else ctx.decode)(ids)
    tables = {role for role in roles if role.endswith("embd.weight")}
    assert tables & refused == tables - {"token_embd.weight"}


def test_damaged_files_are_refused(tmp_path):
    case = Case(tmp_path, "llama")
    case.adapter("good", ["output.weight", "blk.0.ffn_up.weight"], seed=1)
    good = (tmp_path / "good.lora.gguf").read_bytes()
    random = np.random.default_rng(1)
    refused = 0
    for _ in range(300):
        bad = bytearray(good)
        for at in random.integers(0, 700, 3):
            bad[at] = random.integers(0, 256)
        path = tmp_path / "bad.gguf"
        path.write_bytes(bad if random.random() < 0.8 else bad[: random.integers(0, len(bad))])
        try:
            adapter = case.model.load_lora(path)
        except (plait.ModelError, plait.UnsupportedError):
            refused += 1
            continue
        with context(case.model) as ctx:  # damage to names or metadata that are not used
            ctx.set_lora({adapter: 1.0})
            feed(ctx, IDS[:2])
    assert refused > 150


def test_invalid_arguments_are_refused(case, tmp_path):
    other = plait.Model(case.write("again", case.weights))
    with context(case.model) as ctx, context(other) as strange:
        with pytest.raises(ValueError, match="another Model"):
            strange.set_lora({case.all: 1.0})
        for scale in (float("nan"), float("inf")):
            with pytest.raises(ValueError, match="finite"):
                ctx.set_lora({case.all: scale})
        for wrong in ("a", [case.all], {"a": 1.0}, {case.all: "x"}, 3):
            with pytest.raises(TypeError):
                ctx.set_lora(wrong)
        with pytest.raises(TypeError):
            case.model.load_lora(3)
        with pytest.raises(plait.ModelError):
            case.model.load_lora(tmp_path / "nowhere.gguf")
    with pytest.raises(ValueError, match="closed"):
        ctx.set_lora({})


def test_a_refusal_changes_nothing(case, plain):
    with context(case.model) as ctx:
        ctx.set_lora({case.all: 1.0})
        want = feed(ctx, IDS).copy()
        with pytest.raises(ValueError, match="finite"):
            ctx.set_lora({case.some: float("nan")})
        ctx.kv.clear()
        assert same_bits(feed(ctx, IDS), want)


def test_states_know_the_adapters_they_were_made_with(case):  # S3-27
    with context(case.model) as ctx:
        ctx.set_lora({case.some: 0.5})
        feed(ctx, IDS)
        want = feed(ctx, [5]).copy()
        ctx.kv.seq_rm(0, len(IDS))
        state = ctx.kv.to_bytes()
        ctx.set_lora({case.some: 1.0})
        for there in ({case.some: 1.0}, {case.others: 0.5}, {}):
            ctx.set_lora(there)
            before = ctx.kv.to_bytes()
            with pytest.raises(
                plait.StateError, match=r"made with 'LoRA .*' scaled by 0.5, expected"
            ):
                ctx.kv.from_bytes(state)
            assert ctx.kv.to_bytes() == before
    with context(case.model) as ctx, context(case.model) as copy:
        with pytest.raises(plait.StateError, match="expected neither an adapter nor"):
            ctx.kv.from_bytes(state)
        ctx.set_lora({case.some: 0.5})
        ctx.kv.from_bytes(state)
        assert same_bits(feed(ctx, [5]), want)
        with pytest.raises(plait.StateError, match="was made with"):
            ctx.kv.copy_to(copy)
        copy.set_lora({case.some: 0.5})
        ctx.kv.copy_to(copy)
        assert copy.kv.n_used == len(IDS) + 1
    # The same file loaded again is the same adapter; a state without adapters is unchanged.
    again = case.model.load_lora(case.some.path)
    with context(case.model) as ctx:
        ctx.set_lora({again: 0.5})
        ctx.kv.from_bytes(state)


def test_states_of_adapters_that_differ_in_one_bit_are_refused(case, tmp_path):
    data = bytearray(Path(case.some.path).read_bytes())
    data[-4] ^= 1  # not in the middle of a tensor
    (tmp_path / "other.gguf").write_bytes(data)
    other = case.model.load_lora(tmp_path / "other.gguf")
    with context(case.model) as ctx:
        ctx.set_lora({case.some: 1.0})
        feed(ctx, IDS)
        state = ctx.kv.to_bytes()
        ctx.set_lora({other: 1.0})
        with pytest.raises(plait.StateError, match=r"made with 'LoRA .*' scaled by 1, expected"):
            ctx.kv.from_bytes(state)


@pytest.mark.oracle
def test_logits_equal_those_of_llama_cpp(case, tmp_path):
    llama_cpp = pytest.importorskip("llama_cpp")
    targets = lora_models.matrices(case.weights)
    two = [case.adapter("a", targets, seed=11), case.adapter("b", targets[::2], seed=12)]
    scales = [0.75, -1.25]
    theirs = llama_cpp.Llama(
        str(case.folder / "base.gguf"), n_ctx=64, n_batch=64, logits_all=True, verbose=False,
        type_k=0, type_v=0,
    )  # fmt: skip
    adapters = [llama_cpp.llama_adapter_lora_init(theirs.model, a.path.encode()) for a in two]
    pointers = (llama_cpp.llama_adapter_lora_p_ctypes * 2)(*adapters)
    numbers = (llama_cpp.ctypes.c_float * 2)(*scales)
    assert llama_cpp.llama_set_adapters_lora(theirs.ctx, pointers, 2, numbers) == 0
    theirs.eval(IDS)
    want = np.array(theirs.scores[: len(IDS)])
    with context(case.model) as ctx:
        ctx.set_lora(dict(zip(two, scales, strict=True)))
        np.testing.assert_allclose(feed(ctx, IDS), want, rtol=0, atol=5e-3 * np.abs(want).max())


# ---- By sequence ----


@pytest.mark.parametrize("options", [{}, {"n_ubatch": 7}, {"kv": "streams"}])
def test_sequences_use_different_adapters_in_one_call(case, options, invariant_isa):
    """Each sequence has the bits that it has alone, with the same adapters for all."""
    used = [
        {case.all: 1.0}, {}, {case.some: 0.5, case.others: -1.0}, {case.all: -0.5, case.some: 2.0},
        {case.others: 0.0},
    ]  # fmt: skip
    prompts = [tokens(11, seed) for seed in range(len(used))]

    def decode(ctx, seqs):
        ctx.kv.clear()
        rows = batch(*((prompts[seq], seq) for seq in seqs), logits="last")
        first = ctx.decode(rows).logits.copy()
        second = ctx.decode(batch(*(([7, 9], seq) for seq in seqs))).logits.copy()
        return [
            np.concatenate([first[i : i + 1], second[2 * i : 2 * i + 2]]) for i in range(len(seqs))
        ]

    with context(case.model, n_seq_max=len(used), isa=invariant_isa, **options) as ctx:
        for seq, adapters in enumerate(used):
            ctx.set_lora(adapters, seq=seq)
        together = decode(ctx, range(len(used)))
        built = ctx.stats.plans_built
        ctx.set_lora(used[0], seq=[1, 2])  # the same adapters for other sequences
        other = decode(ctx, range(len(used)))
        assert ctx.stats.plans_built == built
        assert not same_bits(other[1], together[1])
        assert same_bits(other[3], together[3])
        for seq, adapters in enumerate(used):
            ctx.set_lora(adapters)
            (want,) = decode(ctx, [seq])
            assert same_bits(together[seq], want), seq
            if seq != 4:
                ctx.set_lora(None)
                (without,) = decode(ctx, [seq])
                assert same_bits(together[seq], without) == (seq == 1)


def test_a_token_of_sequences_with_different_adapters_is_refused(case):
    shared = plait.Batch()
    shared.add_sequence(IDS, seq=[0, 1], logits="all")
    with context(case.model, n_seq_max=3) as ctx:
        ctx.set_lora({case.some: 1.0}, seq=0)
        with pytest.raises(ValueError, match="sequences 0 and 1, which use different adapters"):
            ctx.decode(shared)
        assert ctx.kv.n_used == 0
        ctx.set_lora({case.some: 1.0}, seq=1)
        got = ctx.decode(shared).logits.copy()
        ctx.kv.clear()
        ctx.set_lora({case.some: 1.0})
        assert same_bits(ctx.decode(shared).logits, got)
        with pytest.raises(ValueError, match="sequence 3 does not exist"):
            ctx.set_lora(None, seq=3)


def test_states_of_sequences_with_adapters(case):
    with context(case.model, n_seq_max=3) as ctx:
        ctx.set_lora({case.some: 1.0}, seq=0)
        feed(ctx, IDS)
        saved = ctx.kv.to_bytes(seq=0)
        with pytest.raises(plait.StateError, match="LoRA of digest"):
            ctx.kv.from_bytes(saved, seq=1)
        ctx.set_lora({case.some: 1.0}, seq=1)
        ctx.kv.from_bytes(saved, seq=1)
        assert same_bits(feed(ctx, [7], seq=0), feed(ctx, [7], seq=1))
