"""Conversations with images."""

import base64
import io

import plait
import pytest
from python.vision import towers
from python.vision.image_models import ANSWERS, N_CTX, ask, by_hand, parts_of

pillow = pytest.importorskip("PIL.Image", reason="images need Pillow")
pytest.importorskip("jinja2", reason="plait[chat] is not installed")


def tokens(chat, parts, n=8):
    return [event.token for event in chat.stream(parts, max_tokens=n)]


@pytest.mark.parametrize("size", ANSWERS)
def test_answers_equal_those_of_transformers(ctx, vision, size):
    picture = towers.image(*size)
    assert by_hand(ctx, vision, picture, 8) == ANSWERS[size]
    with plait.Chat(ctx, vision=vision) as chat:
        assert tokens(chat, ask("the", picture)) == ANSWERS[size]


@pytest.mark.parametrize("size", ANSWERS)
def test_the_stored_answers_are_those_of_transformers(model, size):
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    from python.vision import reference

    assert reference.generate(*parts_of(model), size, 8) == ANSWERS[size]


def test_an_answer_equals_that_of_the_batches(ctx, vision):
    picture = towers.image(40, 56)
    want = by_hand(ctx, vision, picture, 8)
    with plait.Chat(ctx, vision=vision) as chat:
        got = tokens(chat, ask("the", picture))
    assert got == want[: len(got)]
    assert len(got) > 1
    with plait.Chat(ctx, vision=vision) as chat:
        assert tokens(chat, ask("the", picture[::-1])) != got


def test_a_second_turn_computes_only_what_is_new(ctx, vision):
    picture = towers.image(40, 56)
    with plait.Chat(ctx, vision=vision) as chat:
        first = tokens(chat, ask("the", picture), 4)
        n_image = len(vision.encode(picture))
        second = tokens(chat, "and then", 4)
        assert chat.n_reused > n_image
        messages = list(chat.messages)
    with plait.Chat(ctx, vision=vision) as chat:
        chat.messages = messages[:-1]
        assert tokens(chat, None, 4) == second
    assert first


def test_an_edited_image_is_computed_again(ctx, vision):
    one, other = towers.image(40, 56), towers.image(56, 40)
    with plait.Chat(ctx, vision=vision) as chat:
        tokens(chat, ask("the", one), 4)
        chat.messages = []
        changed = tokens(chat, ask("the", other), 4)
    assert changed == by_hand(ctx, vision, other, 4)[: len(changed)]


def test_several_images_keep_their_order(ctx, vision):
    one, other = towers.image(20, 30), towers.image(30, 20)
    answers = []
    for pictures in ((one, other), (other, one)):
        with plait.Chat(ctx, vision=vision) as chat:
            answers.append(tokens(chat, ask("the", *pictures)))
    assert answers[0] != answers[1]


def test_data_urls_are_images(ctx, vision):
    picture = towers.image(24, 40)
    data = io.BytesIO()
    pillow.fromarray(picture).save(data, "PNG")
    url = "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
    answers = []
    for image in (
        {"type": "image", "image": picture},
        {"type": "image_url", "image_url": {"url": url}},
    ):
        with plait.Chat(ctx, vision=vision) as chat:
            answers.append(tokens(chat, [image, {"type": "text", "text": "the"}]))
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("part", "error", "message"),
    [
        (
            {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
            ValueError,
            "not fetched",
        ),
        (
            {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
            ValueError,
            "not fetched",
        ),
        (
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,%%"}},
            ValueError,
            "not base64",
        ),
        ({"type": "image_url"}, TypeError, "expected a data URL, got None"),
        ({"type": "image"}, TypeError, 'expected the image in the key "image"'),
        ({"type": "image", "image": b"no image"}, ValueError, "unknown format"),
    ],
)
def test_parts_without_an_image_are_refused(ctx, vision, part, error, message):
    with plait.Chat(ctx, vision=vision) as chat:
        with pytest.raises(error, match=message):
            chat.say([part])
        assert chat.messages == []


def test_a_placeholder_in_text_is_text(ctx, vision):
    with plait.Chat(ctx, vision=vision) as chat:
        chat.say(ask("<|image_pad|>", towers.image(20, 20)), max_tokens=2)
        assert len(chat) == 2


def test_images_without_an_encoder_are_refused(ctx):
    with (
        plait.Chat(ctx) as chat,
        pytest.raises(ValueError, match=r"or an image with vision=plait"),
    ):
        chat.say(ask("the", towers.image(20, 20)))


def test_a_template_without_images_is_refused(ctx, vision):
    template = "{% for m in messages %}{{ m.role }}{% endfor %}"
    with (
        plait.Chat(ctx, vision=vision, template=template) as chat,
        pytest.raises(ValueError, match="writes 0 placeholders for 1 images"),
    ):
        chat.say(ask("the", towers.image(20, 20)))


def test_an_image_that_does_not_fit_is_refused(model, vision):
    with (
        plait.Context(model, n_ctx=N_CTX, n_batch=16) as ctx,
        plait.Chat(ctx, vision=vision) as chat,
        pytest.raises(plait.CacheFull, match="35 embeddings, but n_batch is 16"),
    ):
        chat.say(ask("the", towers.image(40, 56)))
    with (
        plait.Context(model, n_ctx=30) as ctx,
        plait.Chat(ctx, vision=vision) as chat,
        pytest.raises(plait.CacheFull, match="n_ctx is 30"),
    ):
        chat.say(ask("the", towers.image(40, 56)))


def test_an_answer_ends_where_the_context_ends(model, vision):
    with plait.Context(model, n_ctx=90) as ctx, plait.Chat(ctx, vision=vision) as chat:
        chat.say(ask("the", towers.image(40, 56)), max_tokens=500)
        assert chat.finish_reason in ("length", "stop")


def test_conversations_with_data_urls_are_saved(ctx, vision, tmp_path):
    data = io.BytesIO()
    pillow.fromarray(towers.image(24, 40)).save(data, "PNG")
    url = "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
    with plait.Chat(ctx, vision=vision) as chat:
        tokens(chat, [{"type": "image_url", "image_url": url}, {"type": "text", "text": "the"}], 4)
        chat.save(tmp_path / "chat.json")
        want = tokens(chat, "and", 4)
    with plait.Chat.load(tmp_path / "chat.json", ctx, vision=vision) as chat:
        assert tokens(chat, "and", 4) == want
    with plait.Chat(ctx, vision=vision) as chat:
        tokens(chat, ask("the", towers.image(24, 40)), 2)
        with pytest.raises(ValueError, match="JSON"):
            chat.save(tmp_path / "chat.json")


def test_an_encoder_of_another_model_is_refused(ctx, tmp_path, vision):
    with (
        plait.Vision(towers.write(tmp_path, "pixtral")) as other,
        pytest.raises(
            ValueError, match="rows of 24 elements with 1 positions, the model takes 24 with 4"
        ),
    ):
        plait.Chat(ctx, vision=other)
    with pytest.raises(ValueError, match="full is 'shift'"):
        plait.Chat(ctx, vision=vision, full="shift")


def test_a_failed_turn_leaves_a_usable_conversation(model, vision):
    picture = towers.image(40, 56)
    with plait.Context(model, n_ctx=N_CTX, n_batch=16, type_k="f32", type_v="f32") as ctx:
        with plait.Chat(ctx, vision=vision) as chat:
            want = tokens(chat, "the", 4)
        with plait.Chat(ctx, vision=vision) as chat:
            with pytest.raises(plait.CacheFull):
                chat.say(ask("the", picture))
            assert tokens(chat, "the", 4) == want
