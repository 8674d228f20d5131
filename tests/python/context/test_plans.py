"""Execution plans: fused and unfused plans give the same bits for every model; how plans are displayed."""

from __future__ import annotations

import json

import plait
import pytest
from python.fusing import assert_fusing_changes_nothing
from python.model import test_related_architectures
from python.oracle import test_oracle, test_oracle_encoders

from python import recurrent_models

QUANTISED = ["quant/Q8_0", "quant/Q4_0", "quant/Q4_K", "quant/Q6_K"]


@pytest.fixture(scope="module", params=QUANTISED)
def quantised(request, data_dir) -> plait.Model:
    listed = json.loads((data_dir / "index.json").read_text())
    files = sorted({case["model"] for case in listed["cases"] if case.get("model")})
    path = next((data_dir / file for file in files if request.param in file), None)
    if path is None:
        pytest.skip(f"no {request.param} in the reference data")
    return plait.Model(path)


@pytest.mark.parametrize("cache", ["f16", "q8_0"])
def test_fused_plans_of_every_architecture_give_the_same_bits(any_model, isa, cache):  # S1-16
    assert_fusing_changes_nothing(any_model, isa, cache)


def test_fused_plans_of_quantised_weights_give_the_same_bits(quantised, isa):  # S1-16
    assert_fusing_changes_nothing(quantised, isa)


def test_every_registered_architecture_is_among_them(data_dir):
    """Every architecture has stored cases, an equal in transformers or NumPy, or a related architecture."""
    if not (data_dir.parent / "data-2026").is_dir():
        pytest.skip("no data-2026 beside the reference data")
    stored = {
        plait._core.read_metadata(path)["general.architecture"]
        for folder in (data_dir, data_dir.parent / "data-2026")
        for path in folder.glob("conformance/*/model.gguf")
    }
    made = {arch.name for arch in test_oracle.ARCHITECTURES + test_oracle_encoders.ARCHITECTURES}
    compared = test_related_architectures.ARCHITECTURES
    computed = {model.arch for model in recurrent_models.MODELS if model.logits is not None}
    assert set(plait.build_info()["architectures"]) <= stored | made | compared | computed


def test_a_graph_is_a_table_a_drawing_and_a_list(tiny):  # S1-18, S1-30, S1-34
    with plait.Context(tiny, n_ctx=64) as ctx:
        graph = ctx.graph(n_tokens=8, n_outputs=1)
        assert 10 < graph.n_stages < len(graph.operations) < len(graph)
        writes = [node.name or node.op for node in graph if node.writes_cache]
        assert len(writes) == 2 * tiny.n_layer  # keys and values of each layer, once
        assert [node.counts for node in graph if node.output] == ["outputs"]
        assert {node.layer for node in graph if node.op == "attend"} == set(range(tiny.n_layer))
        assert all(i < node.index for node in graph for i in node.inputs)
        assert "blk.0.attn_out" in str(graph)
        assert " device " not in str(graph)
        assert graph._repr_html_().count("<tr>") == sum(not n.is_source for n in graph) + 1
        assert graph.dot().count("->") > len(graph.operations)
        none = type(graph)([])
        assert (str(none), "<tr>" in none._repr_html_()) == ("", False)
        fused = {node.op: node.fused for node in graph if node.fused}
        assert fused["linear_add"] == ("linear", "add")
    with plait.Context(tiny, n_ctx=64, fuse=False) as ctx:
        plain = ctx.graph(n_tokens=8, n_outputs=1)
        assert len(plain.operations) > len(graph.operations)
        assert not any(node.fused for node in plain)


def test_a_graph_without_outputs_has_no_projection(tiny):  # S4-34
    with plait.Context(tiny, n_ctx=64, threads=1) as ctx:
        with_logits, without = ctx.graph(8, n_outputs=1), ctx.graph(8, n_outputs=0)
        names = {node.name for node in with_logits} - {node.name for node in without}
        assert {"output.weight", "result_output"} <= names
        # The same for what runs: a prompt of two microbatches, of which one has outputs. Both plans are kept.
        built = 0
        for _ in range(5):
            ctx.kv.clear()
            with ctx.trace() as trace:
                for logits in ("none", "last"):
                    batch = plait.Batch()
                    batch.add_sequence([3, 4, 5, 6, 7], seq=0, logits=logits)
                    ctx.decode(batch)
            computed = [event.name for event in trace.events if event.thread == 0]
            assert computed.count("result_output") == 1
            assert computed.count("blk.0.attn_heads") == 2
            built = built or ctx.stats.plans_built
        assert ctx.stats.plans_built == built


@pytest.mark.parametrize(
    ("shape", "message"),
    [((0,), "n_tokens"), ((1 << 20,), "n_tokens"), ((4, 5), "n_seqs"), ((4, 1, 5), "n_outputs")],
)
def test_a_graph_of_an_impossible_step_is_refused(tiny, shape, message):
    with (
        plait.Context(tiny, n_ctx=64, n_seq_max=8) as ctx,
        pytest.raises(ValueError, match=message),
    ):
        ctx.graph(*shape)


def test_a_trace_records_operations_and_times(tiny, tmp_path):
    with plait.Context(tiny, n_ctx=64, threads=2) as ctx:
        batch = plait.Batch()
        batch.add_sequence([3, 4, 5, 6])
        ctx.decode(batch)
        with ctx.trace() as trace:
            ctx.decode(batch)
        ctx.decode(batch)
        computed = {(n.op, n.name) for n in ctx.graph(4).operations}
    assert {(event.op, event.name) for event in trace.events} == computed
    assert {event.thread for event in trace.events} <= {0, 1}
    assert all(0 <= event.begin <= event.end < 10 for event in trace.events)
    assert sum(trace.seconds_by_op().values()) > 0
    trace.save(tmp_path / "trace.json")
    saved = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert len(saved) == len(trace.events)
