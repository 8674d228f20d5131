"""lm-evaluation-harness with plait as its model, on the tasks of docs/evaluation/."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import plait
import pytest
from plait.tokenizer.chat_template import KEY, ChatTemplate

pytest.importorskip("lm_eval", reason="plait[eval] is not installed")

EVALUATION = Path(__file__).parents[3] / "docs" / "evaluation"
STORY = "Tom lives in Oslo. The kite is red. Q: Where does Tom live? A:"


@pytest.fixture(scope="module")
def lm():
    from plait.lm_eval import PlaitLM

    return PlaitLM(model="demo", n_seq_max=4)


def ask(*args):
    return SimpleNamespace(args=args)


def test_loglikelihoods_equal_those_of_score(lm):
    contexts = [STORY, STORY, "The kite", STORY + " Tom lives in", ""]
    continuations = [
        " Tom lives in Oslo.",
        " Tom lives in Rome.",
        " is red.",
        " Oslo",
        "The kite is red.",
    ]
    found = lm.loglikelihood(list(map(ask, contexts, continuations)), disable_tqdm=True)
    for context, continuation, (logprob, greedy) in zip(
        contexts, continuations, found, strict=True
    ):
        if context:
            (expected,) = plait.score(lm.model, context, [continuation])
            assert (logprob, greedy) == (expected.logprob, expected.is_greedy)
    assert [greedy for _, greedy in found[:2]] == [True, False]
    whole = plait.token_logprobs(lm.model, continuations[-1])
    assert found[-1][0] == pytest.approx(whole.logprob, abs=1e-4)
    assert lm.ctx.kv.n_used == 0


def test_the_number_of_cells_is_an_option(monkeypatch):
    from plait.lm_eval import PlaitLM

    assert PlaitLM(model="demo", n_ctx=24, n_seq_max=4).ctx.kv.n_cells == 48
    assert PlaitLM(model="demo", n_ctx=24, n_seq_max=4, kv_cells=60).ctx.kv.n_cells == 60
    monkeypatch.setattr(plait.Model, "from_hub", lambda *asked: plait.Model.demo())
    for name in ("hf:me/models/a.gguf", "hf:me/models:a.gguf"):
        assert PlaitLM(model=name).model.n_embd


def test_common_prefixes_are_computed_once(lm):
    requests = [ask(STORY * 3, f" {word}") for word in ("Tom", "Oslo", "The", "red")]
    lm.ctx.stats.reset()
    lm.loglikelihood(requests, disable_tqdm=True)
    n_context = len(lm.model.tokenizer.encode(STORY * 3))
    assert lm.ctx.stats.tokens < n_context + 20


def test_a_later_run_loads_prefixes(lm, tmp_path):
    from plait.lm_eval import PlaitLM

    requests = [ask(STORY * 2, f" {word}") for word in ("Tom", "Oslo")]
    prompts = [ask(STORY * 3, {"max_gen_toks": 5})]
    wanted = lm.loglikelihood(requests, disable_tqdm=True)
    texts = lm.generate_until(prompts, disable_tqdm=True)
    n_tokens = []
    for _ in range(2):
        one = PlaitLM(model="demo", n_seq_max=4, prefixes=str(tmp_path))
        assert one.loglikelihood(requests, disable_tqdm=True) == wanted
        assert one.generate_until(prompts, disable_tqdm=True) == texts
        n_tokens.append(one.ctx.stats.tokens)
    assert n_tokens[1] < n_tokens[0] - len(lm.model.tokenizer.encode(STORY * 3)) + 5


def test_texts_longer_than_the_context_lose_their_beginning(lm):
    from plait.lm_eval import PlaitLM

    short = PlaitLM(model="demo", n_ctx=24)
    ((logprob, _),) = short.loglikelihood([ask(STORY * 4, " Tom")], disable_tqdm=True)
    assert math.isfinite(logprob)
    (text,) = short.generate_until([ask(STORY * 4, {"max_gen_toks": 5})], disable_tqdm=True)
    assert isinstance(text, str)


def test_prompts_keep_half_of_the_context(monkeypatch, caplog):
    from plait.lm_eval import PlaitLM

    sizes = []

    def complete(engine, prompts, limits, *args, **options):
        sizes.extend(zip(map(len, prompts), limits, strict=True))
        return [SimpleNamespace(text="")] * len(prompts)

    monkeypatch.setattr("plait.lm_eval.complete", complete)
    lm = PlaitLM(model="demo", n_ctx=24)
    monkeypatch.setattr(lm, "_encode", lambda text: list(range(1, len(text) + 1)))
    asked = [(4, 12), (4, 20), (4, 24), (4, 2048), (30, 5), (30, 24)]
    requests = [ask("x" * n_prompt, {"max_gen_toks": limit}) for n_prompt, limit in asked]
    lm.generate_until(requests[:2], disable_tqdm=True)
    assert sizes == asked[:2]
    assert not caplog.messages
    lm.generate_until(requests[2:], disable_tqdm=True)
    assert sizes[2:] == [(4, 20), (4, 20), (19, 5), (12, 12)]
    (message,) = caplog.messages
    assert (
        "of 4 requests, 2 lose the beginning of their prompts, and 3 may generate fewer" in message
    )


def test_rolling(lm):
    from plait.lm_eval import PlaitLM

    text = "Tom lives in Oslo. The kite is red."
    (whole,) = lm.loglikelihood_rolling([ask(text)], disable_tqdm=True)
    assert whole == pytest.approx(plait.token_logprobs(lm.model, text).logprob, abs=1e-4)
    ids = lm.model.tokenizer.encode(text, add_special=False).tolist()
    assert 6 < len(ids) <= 12
    (cut,) = PlaitLM(model="demo", n_ctx=6).loglikelihood_rolling([ask(text)], disable_tqdm=True)
    windows = [
        ([lm.prefix_token_id], ids[:6]),
        (ids[len(ids) - 7 : 6], ids[6:]),
    ]  # the last one is full
    parts = [float(plait.score(lm.model, context, [rest])[0]) for context, rest in windows]
    assert cut == pytest.approx(sum(parts), abs=1e-6)


def test_generation_ends_at_the_stop_texts_of_the_task(lm):
    requests = [
        ask(STORY, {"until": [" in"], "max_gen_toks": 10}),
        ask(STORY, {"until": ["."], "max_gen_toks": 10}),
        ask(STORY, {"until": [], "max_gen_toks": 2}),
        ask("The", {"until": ["."], "max_gen_toks": 8, "do_sample": True, "temperature": 1.0}),
    ]
    texts = lm.generate_until(requests, disable_tqdm=True)
    assert texts[:3] == [" Tom lives", " Tom lives in Oslo", " Tom lives"]
    assert lm.generate_until(requests, disable_tqdm=True) == texts


def test_texts_that_begin_with_bos_get_no_other(lm):
    found = lm.loglikelihood([ask(STORY, " Oslo"), ask("<s>" + STORY, " Oslo")], disable_tqdm=True)
    assert found[0] == found[1]
    options = {"max_gen_toks": 5}
    texts = lm.generate_until([ask(STORY, options), ask("<s>" + STORY, options)], disable_tqdm=True)
    assert texts[0] == texts[1]


def test_a_temperature_requests_sampling(lm):
    options = {"max_gen_toks": 12, "temperature": 2.0}
    requests = [
        ask("The", options | more) for more in ({}, {"do_sample": True}, {"do_sample": False})
    ]
    alone, sampled, greedy = lm.generate_until(requests, disable_tqdm=True)
    assert greedy == lm.generate_until([ask("The", {"max_gen_toks": 12})], disable_tqdm=True)[0]
    assert alone != greedy
    assert sampled != greedy


CHAT = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def with_template(monkeypatch, lm, source):
    template = ChatTemplate({KEY: source}, lm.model.tokenizer)
    monkeypatch.setattr(type(lm.model), "chat_template", template)


@pytest.mark.parametrize("trim", ["", " | trim"])
def test_a_prefix_of_the_answer_ends_the_prompt(lm, monkeypatch, trim):
    with_template(monkeypatch, lm, CHAT.replace("m.content", f"m.content{trim}"))
    user = {"role": "user", "content": "Answer with: The answer is Oslo."}
    history = [user, {"role": "assistant", "content": "The answer is "}]
    assert lm.apply_chat_template(history, add_generation_prompt=False) == (
        f"<|user|>{user['content']}<|end|><|assistant|>The answer is" + ("" if trim else " ")
    )
    assert lm.apply_chat_template([user]) == f"<|user|>{user['content']}<|end|><|assistant|>"
    with_template(monkeypatch, lm, "{{ messages[0].content[:6] }}")
    with pytest.raises(ValueError, match="text of the last message is missing"):
        lm.apply_chat_template(history, add_generation_prompt=False)


def test_a_system_text_joins_the_question_if_the_template_rejects_it(lm, monkeypatch):
    refusal = "{{ raise_exception('no system') if messages[0].role == 'system' }}"
    with_template(monkeypatch, lm, refusal + CHAT)
    history = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where?"}]
    assert lm.apply_chat_template(history) == "<|user|>Be brief.\n\nWhere?<|end|><|assistant|>"


@pytest.mark.parametrize("name", ["max_new_tokens", "max_tokens", "max_completion_tokens"])
def test_other_names_of_the_max_number_of_tokens(lm, name):
    requests = [
        ask(STORY, {name: 2, "max_gen_toks": None}),
        ask(STORY, {name: 9, "max_gen_toks": 2}),
    ]
    assert lm.generate_until(requests, disable_tqdm=True) == [" Tom lives"] * 2


def test_repeated_requests_are_different_samples(lm):
    options = {"max_gen_toks": 12, "until": [], "do_sample": True, "temperature": 2.0}
    one, other = ask("The", options), ask("Tom", options)
    texts = lm.generate_until([one, other, one, one], disable_tqdm=True)
    assert len({texts[0], *texts[2:]}) == 3
    assert lm.generate_until([one, one, one, other], disable_tqdm=True) == [
        texts[0], *texts[2:], texts[1],
    ]  # fmt: skip
    greedy = ask("The", {"max_gen_toks": 12, "until": []})
    assert len(set(lm.generate_until([greedy, greedy], disable_tqdm=True))) == 1


@pytest.mark.slow
def test_the_shipped_tasks_run_offline(tmp_path):
    done = subprocess.run(
        [
            sys.executable, "-m", "lm_eval", "--model", "plait", "--model_args", "model=demo,kv=unified",
            "--include_path", EVALUATION, "--tasks", "plait_stories,plait_answers,plait_texts",
            "--output_path", tmp_path,
        ],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    (file,) = tmp_path.rglob("results*.json")
    results = json.loads(file.read_text())["results"]
    assert results["plait_stories"]["acc,none"] >= 0.95
    assert results["plait_answers"]["exact_match,strip"] >= 0.95
    assert 1 < results["plait_texts"]["word_perplexity,none"] < 20


def test_a_receipt_has_all_that_was_computed(tmp_path):
    from plait.lm_eval import PlaitLM

    path = tmp_path / "run.json"
    lm = PlaitLM(model="demo", n_seq_max=4, receipt=str(path))
    lm.loglikelihood([ask(STORY, " Tom"), ask("The kite", " is red.")], disable_tqdm=True)
    n_scored = plait.verify(path, lm.model).n_tokens
    assert n_scored == lm.ctx.stats.tokens
    lm.generate_until([ask(STORY, {"until": ["."], "max_gen_toks": 5})], disable_tqdm=True)
    assert plait.verify(path, lm.model).n_tokens == lm.ctx.stats.tokens > n_scored
