"""Images in requests to an Engine."""

import asyncio
import base64
import io
import threading

import numpy as np
import plait
import pytest
from plait.vision.prompt import ImageTokens, n_before_image, without_part
from python.vision import image_models, towers
from python.vision.image_models import ANSWERS, N_CTX, ask, parts_of

from python import gguf_writer

pillow = pytest.importorskip("PIL.Image", reason="images need Pillow")
pytest.importorskip("jinja2", reason="plait[chat] is not installed")

OPTIONS = {"n_ctx": N_CTX, "type_k": "f32", "type_v": "f32"}
PICTURES = [towers.image(*size) for size in ANSWERS]


@pytest.fixture
def engine(model, vision):
    with plait.Engine(model, 8, vision=vision, **OPTIONS) as engine:
        yield engine


@pytest.fixture
def n_towers(vision, monkeypatch):
    """The shapes of the images that the tower has computed."""
    found = []
    compute = vision._compute

    def counted(pixels, key):
        found.append(pixels.shape)
        return compute(pixels, key)

    monkeypatch.setattr(vision, "_compute", counted)
    return found


@pytest.fixture(scope="session")
def wanted():
    """The answers of 8 tokens to each picture, by transformers."""
    return list(ANSWERS.values())


def asked(*pictures, text="the"):
    return [{"role": "user", "content": ask(text, *pictures)}]


def answer(engine, *pictures, n=8, **more):
    return list(engine.complete_sync(asked(*pictures), max_tokens=n, **more).tokens)


def assert_prefix(got, want):
    assert len(got) > 1
    assert got == want[: len(got)]


def test_answers_equal_those_of_transformers(engine, wanted):
    assert len({tuple(tokens) for tokens in wanted}) == len(wanted)
    for picture, want in zip(PICTURES, wanted, strict=True):
        assert_prefix(answer(engine, picture), want)


def test_concurrent_requests_do_not_confuse_their_images(engine, wanted):
    async def run():
        order = [i % len(PICTURES) for i in range(24)]
        found = await asyncio.gather(
            *(engine.complete(asked(PICTURES[i]), max_tokens=8) for i in order)
        )
        for i, completion in zip(order, found, strict=True):
            assert_prefix(list(completion.tokens), wanted[i])

    asyncio.run(run())


@pytest.mark.parametrize("options", [{"prefixes": False}, {"chunk": 1}, {"kv": "streams"}])
def test_sharing_and_cuts_do_not_change_answers(model, vision, wanted, options):
    with plait.Engine(model, 4, vision=vision, **OPTIONS, **options) as engine:
        for _ in range(2):
            for picture, want in zip(PICTURES, wanted, strict=True):
                assert_prefix(answer(engine, picture), want)


def test_the_prefix_with_the_image_is_shared(engine, vision):
    picture = PICTURES[0]
    first = engine.complete_sync(asked(picture, text="the hat"), max_tokens=4)
    second = engine.complete_sync(asked(picture, text="the cat"), max_tokens=4)
    other = engine.complete_sync(asked(picture[::-1], text="the cat"), max_tokens=4)
    n_image = len(vision.encode(picture))
    assert first.usage.n_cached == 0
    assert second.usage.n_cached > n_image
    assert other.usage.n_cached < n_image
    assert second.usage.n_prompt > n_image
    assert second.prompt_tokens.count(-1) == n_image


def test_the_tower_runs_once_for_an_image(engine, n_towers):
    threads = [threading.Thread(target=answer, args=(engine, PICTURES[0])) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert n_towers == [PICTURES[0].shape]


@pytest.mark.parametrize("share", [True, False])
def test_a_preempted_request_computes_its_image_again(model, vision, wanted, share):
    before, after = parts_of(model)
    with (
        plait.Context(model, n_seq_max=4, kv_cells=N_CTX, **OPTIONS) as ctx,
        plait.Scheduler(ctx, share_prefixes=share) as scheduler,
    ):
        prompts = [[*before, vision.encode(picture), *after] for picture in PICTURES]
        requests = [scheduler.submit(prompt, 70) for prompt in prompts]
        for _ in scheduler.run():
            pass
        assert scheduler.n_preempted > 0
    for request, want in zip(requests, wanted, strict=True):
        assert_prefix(list(request.tokens)[:8], want)


def test_cancelled_requests_leave_no_cells(model, vision, wanted):
    with plait.Engine(model, 8, prefixes=False, vision=vision, **OPTIONS) as engine:

        async def run():
            tasks = [asyncio.create_task(engine.complete(asked(PICTURES[i % 4]), max_tokens=60))
                     for i in range(16)]  # fmt: skip
            await asyncio.sleep(0.02)
            for task in tasks[::2]:
                task.cancel()
            return await asyncio.gather(*tasks, return_exceptions=True)

        found = asyncio.run(run())
        for i, one in enumerate(found):
            if i % 2:
                assert_prefix(list(one.tokens)[:8], wanted[i % 4])
        assert engine.ctx.kv.n_used == 0


def test_several_images_keep_their_order(engine):
    both = [answer(engine, *order) for order in (PICTURES[2:], PICTURES[:1:-1])]
    assert both[0] != both[1]
    assert answer(engine, *PICTURES[2:]) == both[0]


def test_text_does_not_wait_for_images(engine, vision, wanted, monkeypatch):
    go, encode = threading.Event(), vision.encode

    def held(image):
        go.wait()
        return encode(image)

    monkeypatch.setattr(vision, "encode", held)

    async def run():
        images = [
            asyncio.create_task(engine.complete(asked(PICTURES[i % 4]), max_tokens=8))
            for i in range(40)
        ]
        await asyncio.sleep(0.05)
        images[7].cancel()
        try:
            await asyncio.wait_for(engine.complete([{"role": "user", "content": "the hat"}], 2), 30)
            long = [{"role": "user", "content": "x" * (1 << 15)}]  # encoded in a thread
            with pytest.raises(ValueError, match="n_ctx"):
                await asyncio.wait_for(engine.complete(long, 2), 30)
            assert not any(task.done() for i, task in enumerate(images) if i != 7)
        finally:
            go.set()
        return await asyncio.gather(*images, return_exceptions=True)

    for i, completion in enumerate(asyncio.run(run())):
        if i != 7:
            assert_prefix(list(completion.tokens), wanted[i % 4])


def test_a_prompt_may_hold_embeddings(engine, model, vision, wanted):
    before, after = parts_of(model)
    image = vision.encode(PICTURES[0])
    done = engine.complete_sync([*before, image, *after], 8)
    assert_prefix(list(done.tokens), wanted[0])
    again = plait.generate(engine.ctx, [[*before, image, *after]], max_tokens=8)
    assert [event.token for event in again] == list(done.tokens)


def test_a_prompt_may_end_with_an_image(engine, model, vision):
    image = vision.encode(PICTURES[0])
    prompt = [5, 6, 7, 8, 9, 10, 11, 12, 13, image]
    first = engine.complete_sync(prompt, 4)
    assert engine.complete_sync(prompt, 4).tokens == first.tokens
    with plait.Context(model, **OPTIONS) as ctx:
        seq, rows = ctx.sequence(), None
        batch = plait.Batch()
        batch.add_sequence(prompt[:-1], seq=seq)
        ctx.decode(batch)
        batch = plait.Batch()
        image.add_to(batch, 9, seq=seq, logits="last")
        rows = ctx.decode(batch).logits
    assert first.tokens[0] == int(rows[0].argmax())


def test_samples_of_an_image_differ_by_their_seed_only(engine):
    def draw(seed):
        sampler = plait.Sampler(temperature=1.5, seed=seed)
        return answer(engine, PICTURES[0], sampler=sampler)

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)


def test_chats_of_an_engine_use_its_encoder_and_share_prefixes(engine, wanted):
    with plait.Chat(engine) as one, plait.Chat(engine) as other:
        got = [event.token for event in one.stream(ask("the", PICTURES[0]), max_tokens=8)]
        assert_prefix(got, wanted[0])
        assert [e.token for e in other.stream(ask("the", PICTURES[0]), max_tokens=8)] == got
        assert other.n_reused > 35


def test_two_encoders_of_one_engine_are_not_confused(engine, model, tmp_path):
    metadata, tensors = towers.qwen2vl()
    changed = {name: 2 * t if name == "mm.2.weight" else t for name, t in tensors.items()}
    path = gguf_writer.write(tmp_path / "other.gguf", metadata, changed)
    with plait.Vision(path) as second, plait.Chat(engine, vision=second) as chat:
        chat.say(ask("the", PICTURES[0]), max_tokens=2)
        first = answer(engine, PICTURES[0])
        with plait.Engine(model, 2, vision=second, **OPTIONS) as alone:
            assert answer(alone, PICTURES[0]) != first
        with plait.Chat(engine, vision=second) as again:
            assert again.say(ask("the", PICTURES[0]), max_tokens=2) == chat.message.content
            assert again.n_reused > 35


def test_stored_prefixes_end_before_the_first_image(model, vision, wanted, tmp_path):
    store = plait.PrefixStore(tmp_path / "prefixes")
    text = [{"role": "system", "content": "the hat and the cat and the mat"}]
    answers = []
    for _ in range(2):
        with plait.Engine(model, 4, store, vision=vision, **OPTIONS) as engine:
            done = engine.complete_sync(text + asked(PICTURES[0]), 8)
            answers.append(done)
            assert_prefix(answer(engine, PICTURES[1]), wanted[1])
    assert answers[0].tokens == answers[1].tokens
    assert answers[0].usage.n_cached == 0
    n_text = n_before_image(list(answers[1].prompt_tokens))
    assert answers[1].usage.n_cached == n_text > 8


@pytest.mark.parametrize(
    ("parts", "error", "message"),
    [
        ([{"type": "image", "image": b"nothing"}], ValueError, "unknown format"),
        ([{"type": "image_url", "image_url": "https://example.org/a"}], ValueError, "not fetched"),
        (ask("the", *PICTURES, *PICTURES), ValueError, "than 128 tokens with the first 3 of 8 im"),
    ],
)
def test_bad_images_are_refused_and_others_continue(engine, wanted, parts, error, message):
    with pytest.raises(error, match=message):
        engine.complete_sync([{"role": "user", "content": parts}])
    assert_prefix(answer(engine, PICTURES[0]), wanted[0])


def test_requests_that_cannot_run_are_refused(model, vision):
    with plait.Engine(model, 2, vision=vision, n_batch=16, **OPTIONS) as engine:
        with pytest.raises(plait.CacheFull, match="35 embeddings, but n_batch is 16"):
            answer(engine, PICTURES[0])
        draft = plait.PromptLookup()
        with pytest.raises(plait.UnsupportedError, match="draft tokens after images"):
            answer(engine, PICTURES[3], draft=draft)
        assert engine.complete_sync([5, 6, 7], 2).tokens
    with (
        plait.Engine(model, 2, **OPTIONS) as engine,
        pytest.raises(ValueError, match="or an image with vision="),
    ):
        answer(engine, PICTURES[0])


def test_an_encoder_of_another_model_is_refused(model, tmp_path):
    with (
        plait.Vision(towers.write(tmp_path, "pixtral")) as other,
        pytest.raises(ValueError, match="rows of 24 elements with 1 positions, the model takes 24"),
    ):
        plait.Engine(model, vision=other)
    with pytest.raises(TypeError, match="Engine: vision: expected a Vision"):
        plait.Engine(model, vision="mmproj.gguf")


@pytest.mark.parametrize(
    ("width", "grid", "message"),
    [
        (48, (2, 2), "rows of 48 elements with 4 positions, the model takes 24 with 4"),
        (24, (3, 3), r"has 4 rows, but a grid of \(3, 3\)"),
    ],
)
def test_embeddings_that_the_model_does_not_take_end_no_other_request(engine, width, grid, message):
    rows = np.zeros((4, width), np.float32)
    wrong = plait.ImageEmbeddings(rows, grid, 4, b"key")

    async def run():
        other = asyncio.create_task(engine.complete([5, 6, 7], 20))
        await asyncio.sleep(0)
        with pytest.raises(ValueError, match=message):
            await engine.complete([5, wrong, 6], 2)
        return await other

    assert len(asyncio.run(run()).tokens) == 20


def test_numbers_of_rows_depend_on_the_image_alone(vision):
    one, other = vision.encode(PICTURES[0]), vision.encode(PICTURES[1])
    prompt = ImageTokens([1, one, 2, other, 3])
    assert list(prompt) == [1, *ImageTokens([one]), 2, *ImageTokens([other]), 3]
    assert not set(ImageTokens([one])) & set(ImageTokens([other]))
    assert without_part(prompt, 1 + len(one)) == 1 + len(one)
    for n in range(1, 1 + len(one)):
        assert without_part(prompt, n) == 1
    assert n_before_image(prompt, 1 + len(one)) == 1


@pytest.fixture(scope="session")
def gemma(tmp_path_factory):
    """A Gemma 3 text model, whose images attend in both directions, and its encoder."""
    folder = tmp_path_factory.mktemp("gemma")
    model = plait.Model(image_models.gemma3_model(folder / "text.gguf"))
    with plait.Vision(towers.write(folder, "gemma3")) as vision:
        yield model, vision


def test_images_that_attend_in_both_directions(gemma):
    model, vision = gemma
    alone = []
    for picture in PICTURES:
        with plait.Engine(model, 1, prefixes=False, vision=vision, **OPTIONS) as engine:
            done = engine.complete_sync(asked(picture), max_tokens=8)
            alone.append((done.tokens, done.logprobs))
    assert len(set(alone)) == len(PICTURES)
    with plait.Engine(model, 6, vision=vision, **OPTIONS) as engine:

        async def run():
            jobs = [engine.complete(asked(PICTURES[i % 4]), max_tokens=8) for i in range(12)]
            return await asyncio.gather(*jobs)

        for i, completion in enumerate(asyncio.run(run())):
            assert (completion.tokens, completion.logprobs) == alone[i % 4]
        again = engine.complete_sync(asked(PICTURES[0]), max_tokens=8)
        assert (again.tokens, again.logprobs) == alone[0]
    image = vision.encode(PICTURES[0])
    with (
        plait.Engine(model, 2, vision=vision, n_ubatch=len(image) - 1, **OPTIONS) as engine,
        pytest.raises(plait.CacheFull, match="but n_ubatch is"),
    ):
        answer(engine, PICTURES[0])


def test_data_urls_are_images(engine, wanted):
    data = io.BytesIO()
    pillow.fromarray(PICTURES[0]).save(data, "PNG")
    url = "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "the"}]
    done = engine.complete_sync([{"role": "user", "content": parts}], 8)
    assert_prefix(list(done.tokens), wanted[0])
    assert np.isfinite(done.logprobs).all()
