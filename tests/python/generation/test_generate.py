"""generate(): greedy continuations, many prompts in one context, and cleanup."""

import numpy as np
import plait
import pytest
from python.drive import feed, tokens

from python import gguf_writer

PROMPTS = ["the hat", "in the end", "a", "then he told her", "one or the other", "so"]


def alone(model, prompt, n):
    """Return the greedy tokens of one prompt, decoded without generate()."""
    ids = model.tokenizer.encode(prompt).tolist()
    said = []
    with plait.Context(model, n_ctx=256) as ctx:
        row = feed(ctx, ids)[-1]
        while len(said) < n:
            said.append(int(row.argmax()))
            if said[-1] in model.tokenizer.eog:
                break
            row = feed(ctx, said[-1:])[-1]
    return said


def collect(events, n):
    said = [[] for _ in range(n)]
    for event in events:
        said[event.index].append(event)
    return said


def test_one_prompt_is_continued_greedily(tiny):
    events = list(plait.generate(tiny, "the hat", max_tokens=20))
    assert [event.token for event in events] == alone(tiny, "the hat", 20)
    assert {event.index for event in events} == {0}
    assert [event.finish_reason for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1].finish_reason in ("length", "stop")


@pytest.mark.parametrize("n_seq_max", [1, 2, 6])
@pytest.mark.parametrize("kv_cells", [None, 60])
@pytest.mark.parametrize("kv", ["unified", "streams"])
def test_prompts_in_one_context_generate_the_same_text_as_alone(tiny, n_seq_max, kv_cells, kv):
    if kv == "streams" and kv_cells:
        pytest.skip("streams have n_ctx cells each")
    want = [alone(tiny, prompt, 12) for prompt in PROMPTS]
    with plait.Context(tiny, n_ctx=64, n_seq_max=n_seq_max, kv=kv, kv_cells=kv_cells) as ctx:
        said = collect(plait.generate(ctx, PROMPTS, max_tokens=12), len(PROMPTS))
        assert ctx.kv.n_used == 0
    assert [[event.token for event in events] for events in said] == want
    assert all(events[-1].finish_reason for events in said)


def test_long_prompts_are_read_in_several_calls(tiny):
    prompts = [tokens(50, 1), tokens(30, 2), tokens(3, 3)]
    with plait.Context(tiny, n_ctx=64, n_seq_max=3) as ctx:
        want = collect(plait.generate(ctx, prompts, max_tokens=6), 3)
    with plait.Context(tiny, n_ctx=64, n_seq_max=3, n_batch=8) as ctx:
        got = collect(plait.generate(ctx, prompts, max_tokens=6), 3)
    assert [[e.token for e in events] for events in got] == [
        [e.token for e in events] for events in want
    ]


def test_texts_joined_are_the_decoded_tokens(tiny):
    for events in collect(plait.generate(tiny, PROMPTS, max_tokens=30), len(PROMPTS)):
        stream = tiny.tokenizer.stream(continuing=True)
        kept = [event.token for event in events if event.token not in tiny.tokenizer.eog]
        want = "".join(stream.push(token) for token in kept) + stream.flush()
        assert "".join(event.text for event in events) == want


def test_log_probabilities_equal_those_of_the_logits(tiny):
    events = list(plait.generate(tiny, "the hat", max_tokens=5))
    with plait.Context(tiny, n_ctx=64) as ctx:
        rows = feed(
            ctx, tiny.tokenizer.encode("the hat").tolist() + [event.token for event in events]
        )
    for event, row in zip(events, rows[-len(events) - 1 :].astype(np.float64), strict=False):
        assert event.logprob == pytest.approx(
            row[event.token] - np.log(np.exp(row).sum()), abs=1e-5
        )


def test_an_end_token_is_last_and_has_no_text(tiny):
    full = alone(tiny, "the hat", 20)
    stop = full[7]
    events = list(plait.generate(tiny, "the hat", max_tokens=20, stop=[stop]))
    assert [event.token for event in events] == full[: full.index(stop) + 1]
    assert events[-1].finish_reason == "stop"


def test_eos_of_the_model_ends_a_generation(tmp_path):
    weights = gguf_writer.llama_weights()
    weights["output.weight"][gguf_writer.EOS] = 0
    model = plait.Model(
        gguf_writer.write(
            tmp_path / "m.gguf", gguf_writer.llama_metadata() | gguf_writer.vocabulary(), weights
        )
    )

    def eos_third(row, seq):
        count[seq] = count.get(seq, 0) + 1
        return gguf_writer.EOS if count[seq] == 3 else int(row.argmax())

    count = {}
    said = collect(plait.generate(model, PROMPTS[:3], max_tokens=9, sampler=eos_third), 3)
    assert [len(events) for events in said] == [3, 3, 3]
    assert {events[-1].finish_reason for events in said} == {"stop"}


def test_max_tokens_and_n_ctx_end_by_length(tiny):
    events = list(plait.generate(tiny, "the", max_tokens=1))
    assert (len(events), events[0].finish_reason) == (1, "length")
    with plait.Context(tiny, n_ctx=10) as ctx:
        events = list(plait.generate(ctx, [tokens(8)], max_tokens=50))
        assert (len(events), events[-1].finish_reason) == (
            3,
            "length",
        )  # two are put back, the third is not
        assert len(list(plait.generate(ctx, [tokens(10)], max_tokens=50))) == 1


def test_a_sampler_is_called_with_the_prompts_index(tiny):
    sampler = plait.Sampler(temperature=1.0, seed=5)
    first = collect(plait.generate(tiny, PROMPTS, max_tokens=8, sampler=sampler), len(PROMPTS))
    sampler.reset()
    with plait.Context(tiny, n_ctx=64, n_seq_max=2) as ctx:
        again = collect(plait.generate(ctx, PROMPTS, max_tokens=8, sampler=sampler), len(PROMPTS))
    assert [[e.token for e in events] for events in first] == [
        [e.token for e in events] for events in again
    ]


def test_closing_early_frees_the_sequences(tiny):
    with plait.Context(tiny, n_ctx=64, n_seq_max=3) as ctx:
        events = plait.generate(ctx, PROMPTS, max_tokens=30)
        for _ in range(7):
            next(events)
        assert ctx.kv.n_used > 0
        events.close()
        assert ctx.kv.n_used == 0
        assert [ctx.sequence().id for _ in range(1)] == [0]


def test_a_failing_sampler_frees_the_sequences(tiny):
    def broken(row, seq):
        raise RuntimeError("no luck")

    with plait.Context(tiny, n_ctx=64, n_seq_max=3) as ctx:
        with pytest.raises(RuntimeError, match="no luck"):
            list(plait.generate(ctx, PROMPTS, sampler=broken))
        assert ctx.kv.n_used == 0


def test_other_sequences_of_the_context_are_left_alone(tiny):
    with plait.Context(tiny, n_ctx=64, n_seq_max=3) as ctx:
        feed(ctx, tokens(10), 1)
        keys = ctx.kv.keys(0, 1)
        list(plait.generate(ctx, PROMPTS, max_tokens=5))
        np.testing.assert_array_equal(ctx.kv.keys(0, 1), keys)
        assert ctx.kv.n_used == 10


def test_without_room_prompts_wait_or_fail(tiny):
    with plait.Context(tiny, n_ctx=64, n_seq_max=3, kv_cells=40) as ctx:
        feed(ctx, tokens(35), 1)
        with pytest.raises(plait.CacheFull) as error:
            list(plait.generate(ctx, [tokens(6)]))
        assert (error.value.needed, error.value.free) == (6, 5)
        assert len(list(plait.generate(ctx, [tokens(5)], max_tokens=9))) == 1
        ctx.kv.clear()
        held = [ctx.sequence() for _ in range(3)]
        with pytest.raises(plait.CacheFull):
            list(plait.generate(ctx, ["a"]))
        del held


@pytest.mark.parametrize(
    ("prompts", "options", "error", "message"),
    [
        (["a", []], {}, ValueError, "prompt 1 has no tokens"),
        ([tokens(300)], {}, None, ""),
        ("a", {"max_tokens": 0}, ValueError, "max_tokens is 0"),
        ([5.5], {}, TypeError, "prompt 0"),
        ([None], {}, TypeError, "prompt 0"),
    ],
)
def test_wrong_arguments_are_refused_at_the_call(tiny, prompts, options, error, message):
    if error is None:
        with (
            plait.Context(tiny, n_ctx=64) as ctx,
            pytest.raises(ValueError, match="prompt 0 has 300 tokens"),
        ):
            plait.generate(ctx, prompts)
        return
    with pytest.raises(error, match=message):
        plait.generate(tiny, prompts, **options)


def test_no_prompts_no_events(tiny):
    assert list(plait.generate(tiny, [])) == []


def test_stored_text_of_real_weights(data_dir):
    """Greedy continuations by stories260K equal those of llama.cpp."""
    import json

    reference = json.loads((data_dir / "models" / "stories260K-ref.json").read_text())
    model = plait.Model(data_dir / "models" / "stories260K-f32.gguf")
    cases = [case for case in reference["generations"] if case["prompt"]]
    said = collect(
        plait.generate(model, [case["prompt"] for case in cases], max_tokens=100), len(cases)
    )
    for case, events in zip(cases, said, strict=True):
        n = min(100, case["n_tokens_before_margin_below_0_02"])
        assert [event.token for event in events][:n] == case["greedy_tokens"][:n]
