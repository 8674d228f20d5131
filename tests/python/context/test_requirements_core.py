"""Requirements that span several parts, checked on the package or its sources."""

import re
from pathlib import Path

import numpy as np
import plait
import pytest

CPP = Path(__file__).parents[3] / "cpp"


def greedy(model, prompt, n, **options):
    with plait.Context(model, n_ctx=512, **options) as ctx:
        return [(event.token, event.text) for event in plait.generate(ctx, prompt, max_tokens=n)]


def test_text_is_the_same_with_and_without_reuse_and_flash_attention(data_dir):  # S0-12
    model = plait.Model(data_dir / "models" / "stories260K-f32.gguf")
    said = {
        (reuse, flash): greedy(
            model, "Once upon a time", 32, graph_reuse=reuse, flash_attention=flash
        )
        for reuse in (True, False)
        for flash in (True, False)
    }
    assert all(events == said[True, True] for events in said.values())
    assert "".join(text for _, text in said[True, True]) == (
        ", there was a little girl named Lily. She loved to play outside in the park. One day, she saw"
    )


def test_eight_clients_share_a_context_for_128_requests(tiny):  # S0-13
    rng = np.random.default_rng(1)
    prompts = [rng.integers(3, 288, int(n)).tolist() for n in rng.integers(1, 60, 128)]
    texts = []
    for reuse in (True, False):
        said = [""] * len(prompts)
        with plait.Context(tiny, n_ctx=256, n_seq_max=8, kv_cells=4096, graph_reuse=reuse) as ctx:
            for event in plait.generate(ctx, prompts, max_tokens=128):
                said[event.index] += event.text
            assert ctx.kv.n_used == 0
            assert ctx.kv.cells().shape == (0,)
        texts.append(said)
    assert texts[0] == texts[1]


def test_the_largest_step_is_planned_at_creation(tiny):
    """No later step makes the process larger: what it needs was there from the start."""

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    with plait.Context(tiny, n_ctx=2048, n_seq_max=4) as ctx:
        batch = plait.Batch()
        for n in (1, 7, 512, 2040):
            for repeat in range(3):
                batch.clear()
                batch.add_sequence([5] * n, seq=0, logits="none")
                ctx.decode(batch)
                ctx.kv.clear()
                if repeat == 0:
                    before = resident()
            assert resident() - before < 1 << 20


def test_one_function_plans_the_worst_case():  # S4-32
    definitions = [
        path.relative_to(CPP).as_posix()
        for path in CPP.rglob("*.cpp")
        if re.search(r"^\w[\w:<> ]*::reserve\w*\(const PlanKey", path.read_text(), re.MULTILINE)
    ]
    assert definitions == ["runtime/step/engine.cpp"]


def test_every_input_of_a_graph_has_a_type_and_is_set_in_one_place():  # S4-38
    header = (CPP / "graph" / "ops" / "sources.h").read_text()
    (body,) = re.findall(r"enum class InputField : \w+ \{(.*?)\};", header, re.DOTALL)
    fields = re.findall(r"\w+", re.sub(r"//[^\n]*", "", body))
    assert len(fields) > 10
    runner = (CPP / "runtime" / "step" / "step_runner.cpp").read_text()
    (write_inputs,) = re.findall(
        r"void StepRunner::write_inputs\(.*?^}", runner, re.DOTALL | re.MULTILINE
    )
    assert [field for field in fields if f"case InputField::{field}:" not in write_inputs] == []
    assert "default:" not in write_inputs


@pytest.mark.parametrize("kv", ["unified", "streams"])
def test_sequences_come_and_go_without_a_leak(tiny, kv):  # S4-14
    rng = np.random.default_rng(0)
    with plait.Context(tiny, n_ctx=32, n_seq_max=16, kv=kv, threads=1) as ctx:
        live = []
        for _ in range(1000):
            if live and (len(live) == 16 or rng.random() < 0.5):
                live.pop(int(rng.integers(len(live)))).close()
            else:
                live.append(ctx.sequence())
            batch = plait.Batch()
            for seq in live:
                if len(seq) < 32:
                    batch.add(int(rng.integers(3, 288)), seq=seq)
            if len(batch):
                ctx.decode(batch)
        assert ctx.kv.n_used == sum(len(seq) for seq in live)
        for seq in live:
            seq.close()
        assert ctx.kv.n_used == 0
