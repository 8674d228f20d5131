"""A local Ray cluster: results in order, original exceptions, and repeated work after an actor dies."""

import os
import signal

import numpy as np
import plait
import pytest

pytest.importorskip("ray", reason="plait[ray] is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

PROMPTS = [
    f"{name} lives in {city}. Q: Where does {name} live? A:"
    for name in ("Tom", "Mia", "Ben", "Ana", "Leo") for city in ("Oslo", "Rome", "Lima", "Cairo")
]  # fmt: skip


# Ray gives up, by the clock, on processes that a busy machine starts slowly.
PATIENCE = {
    "RAY_gcs_server_port_wait_time_s": "600",
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_health_check_failure_threshold": "600",
}


def start(ray) -> None:
    """ray.init(), again while it says that the node took over half a minute to start, which no setting changes."""
    for tries in range(10):
        try:
            ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
        except Exception as error:
            ray.shutdown()
            if "timed out during startup" not in str(error) or tries == 9:
                raise
        else:
            return


@pytest.fixture(scope="module")
def pool():
    import ray
    from plait.ray import Pool

    with pytest.MonkeyPatch.context() as patch:
        for name, value in PATIENCE.items():
            patch.setenv(name, value)
        start(ray)
        with Pool("demo", actors=2, cpus=1, batch=4, n_ctx=64, n_seq_max=4) as pool:
            yield pool
        ray.shutdown()


def test_stops_with_one_string_for_a_prompt_stay_with_it():
    from plait.ray.pool import _per_prompt

    for stop in ([["x"], "b", "c"], ["b", {"x"}, "c"]):
        stops = [set(one) for one in _per_prompt(3, stop=stop)["stop"]]
        assert stops == [set(one) for one in stop]
        assert not any(isinstance(one, str) for one in _per_prompt(3, stop=stop)["stop"])
    assert _per_prompt(3, stop=["b", "c"])["stop"] == [["b", "c"]] * 3


def test_generations_come_in_order(pool):
    seen = []
    found = pool.generate(PROMPTS, 12, progress=lambda *done: seen.append(done))
    expected = plait.complete(plait.Model.demo(), PROMPTS, 12, progress=False)
    assert [one.text for one in found] == [one.text for one in expected]
    assert seen == [(n, 20) for n in (4, 8, 12, 16, 20)]


def test_each_prompt_has_its_own_arguments(pool):
    """Batches are ordered by length, so prompts in ascending length are in the opposite order."""
    prompts = [*sorted(PROMPTS, key=len), "Tom lives in a house in Oslo with Mia. Q: Who? A: Mia."]
    each = {
        "max_tokens": range(1, len(prompts) + 1),
        "sampler": [plait.Sampler(1.5, seed=i) if i % 3 else None for i in range(len(prompts))],
        "stop": [["."] if i % 2 else [] for i in range(len(prompts))],
        "seed": [i if i % 5 else None for i in range(len(prompts))],
    }

    def shown(found):
        return [(one.index, one.sample, one.text, one.tokens) for one in found]

    expected = plait.complete(plait.Model.demo(), prompts, progress=False, **each)
    assert shown(pool.generate(prompts, **each)) == shown(expected)
    one = plait.Sampler(1.5)
    for options in ({"sampler": one, "stop": "."}, {"sampler": one, "stop": iter([".", 5])}):
        found = shown(pool.generate(prompts, 9, **options))
        options["stop"] = [".", 5] if options["stop"] != "." else "."
        assert found == shown(
            plait.complete(plait.Model.demo(), prompts, 9, progress=False, **options)
        )
    with pytest.raises(ValueError, match="seed has 2 elements"):
        pool.generate(prompts, 4, seed=[1, 2])
    with pytest.raises(ValueError, match="n is 2, but a pool generates once per prompt"):
        pool.generate(prompts, 4, n=2)


def test_scores_and_embeddings(pool):
    model = plait.Model.demo()
    pairs = [(prompt, [" Tom", " Mia"]) for prompt in PROMPTS[:6]]
    found = pool.score(pairs)
    for (context, rest), scores in zip(pairs, found, strict=True):
        assert list(map(float, scores)) == list(map(float, plait.score(model, context, rest)))
    np.testing.assert_allclose(pool.embed(PROMPTS), plait.embed(model, PROMPTS), atol=1e-6)


def test_a_string_is_one_text(pool):
    model = plait.Model.demo()
    expected = plait.complete(model, PROMPTS[0], 4, progress=False)
    assert [done.tokens for done in pool.generate(PROMPTS[0], 4)] == [expected[0].tokens]
    np.testing.assert_allclose(pool.embed(PROMPTS[0]), plait.embed(model, PROMPTS[0]), atol=1e-6)


def test_a_string_is_no_list_of_continuations(pool):
    with pytest.raises(TypeError, match=r"continuations is str; pass a list of texts: \['Oslo'\]"):
        pool.score([("Tom lives in", "Oslo")])


def test_arguments_that_cannot_be_sent_cost_no_actor(pool):
    before = pool.pids()
    with pytest.raises(TypeError):
        pool.generate(PROMPTS, 2, draft=plait.DraftModel(plait.Model.demo()))
    assert sorted(pool.pids()) == sorted(before)


def test_a_receipt_of_several_pairs_is_refused(pool, tmp_path):
    with pytest.raises(ValueError, match="but each pair is computed on its own"):
        pool.score([("Tom lives in", [" Oslo"])], receipt=tmp_path / "receipt.json")
    assert list(tmp_path.iterdir()) == []


def test_work_of_a_killed_actor_is_done_again(pool):
    before = pool.pids()

    def kill(done, total):
        if done == 4:
            os.kill(before[0], signal.SIGKILL)
            os.kill(before[1], signal.SIGKILL)

    found = pool.generate(PROMPTS, 12, progress=kill)
    expected = plait.complete(plait.Model.demo(), PROMPTS, 12, progress=False)
    assert [one.text for one in found] == [one.text for one in expected]
    assert not set(before) & set(pool.pids())


def test_errors_come_as_themselves(pool):
    with pytest.raises(ValueError, match="max_tokens"):
        pool.generate(PROMPTS, 0)
    assert len(pool.generate(PROMPTS[:3], 2)) == 3  # and the pool goes on
    from plait.ray import Pool

    with pytest.raises(plait.ModelError, match="nowhere"):
        Pool("nowhere.gguf", actors=1, cpus=1)
    with pytest.raises(ValueError, match="batch"):
        Pool("demo", batch=0)
