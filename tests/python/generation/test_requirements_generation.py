"""Requirements on many requests at once: the scenarios of llama-parallel with plait.Scheduler."""

import random

import plait


def prompts(model, n):
    """A common instruction and questions of different lengths, drawn with seed 1."""
    luck = random.Random(1)
    words = ["the hat", "in the end", "then he told her", "one or the other", "as it is", "no"]
    system = "in the end there is the one or the other hat. " * 3
    return [system + " ".join(luck.choices(words, k=luck.randrange(1, 12))) for _ in range(n)]


def parallel(model, n_requests, n_tokens, clients, **options):
    """Run clients that submit a request as soon as the previous one ends. Return the texts and the number of steps."""
    asked = prompts(model, n_requests)
    sampler = plait.Sampler(temperature=0.9, seed=1)
    with plait.Context(model, n_seq_max=clients, **options) as ctx:
        with plait.Scheduler(ctx) as scheduler:
            live = [scheduler.submit(asked[i], n_tokens, sampler=sampler) for i in range(clients)]
            done, steps = [], 0
            while scheduler.busy:
                steps += 1
                scheduler.step()
                for request in [request for request in live if request.done]:
                    live.remove(request)
                    done.append(request)
                    if len(done) + len(live) < n_requests:
                        text = asked[len(done) + len(live)]
                        live.append(scheduler.submit(text, n_tokens, sampler=sampler))
        assert ctx.kv.n_used == 0
        assert [ctx.sequence().id] == [0]
    assert {request.finish_reason for request in done} <= {"stop", "length"}
    assert len(done) == n_requests
    return [request.text for request in sorted(done, key=lambda request: request.index)], steps


def test_parallel_clients_say_the_same_with_plans_reused_or_not(tiny):
    """S0-13: 8 clients, 128 requests, seed 1, context of 4096, up to 128 tokens each."""
    runs = [
        parallel(tiny, 128, 128, clients=8, n_ctx=4096, kv_cells=4096, graph_reuse=reuse)
        for reuse in (True, False)
    ]
    assert runs[0] == runs[1]


def test_parallel_clients_in_one_table_and_in_streams(tiny):
    """S2-09: 8 times 16384 unified and 32 times 4096 streams, 128 requests, seed 1, to the end."""
    unified, _ = parallel(tiny, 128, 128, clients=8, n_ctx=16384, kv="unified")
    streams, _ = parallel(tiny, 128, 128, clients=32, n_ctx=4096, kv="streams")
    assert unified == streams  # regardless of other sequences in the batch
