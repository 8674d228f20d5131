"""A tiny text model that reads images, and its answers without Chat or Engine."""

import numpy as np
import plait
from python.vision import towers

from python import gguf_writer

WIDTH, N_CTX = towers.N_EMBD, 128
TOKENS = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _matrix(rng, rows, columns):
    return (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)


def _vocabulary(tokens, template):
    vocabulary = gguf_writer.vocabulary()
    first = len(vocabulary["tokenizer.ggml.tokens"]) - len(tokens)
    vocabulary["tokenizer.ggml.tokens"][first:] = tokens
    vocabulary["tokenizer.ggml.token_type"][first:] = 3
    vocabulary["tokenizer.ggml.eos_token_id"] = first + 1
    return vocabulary | {"tokenizer.chat_template": template}


def _weights(rng, n_layers):
    ones = np.ones(WIDTH, np.float32)
    weights = {
        "token_embd.weight": 4 * _matrix(rng, gguf_writer.N_VOCAB, WIDTH),
        "output_norm.weight": ones,
    }
    for i in range(n_layers):
        for name in ("attn_q", "attn_k", "attn_v"):
            weights[f"blk.{i}.{name}.weight"] = 2 * _matrix(rng, WIDTH, WIDTH)
        weights |= {
            f"blk.{i}.attn_norm.weight": ones,
            f"blk.{i}.attn_output.weight": 4 * _matrix(rng, WIDTH, WIDTH),
            f"blk.{i}.ffn_norm.weight": ones,
            f"blk.{i}.ffn_gate.weight": _matrix(rng, 32, WIDTH),
            f"blk.{i}.ffn_up.weight": _matrix(rng, 32, WIDTH),
            f"blk.{i}.ffn_down.weight": _matrix(rng, WIDTH, 32),
        }
    return weights


def _metadata(arch, n_layers, **more):
    metadata = {
        "block_count": n_layers,
        "context_length": N_CTX,
        "embedding_length": WIDTH,
        "feed_forward_length": 32,
        "attention.head_count": 2,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 10000.0,
        **more,
    }
    return {"general.architecture": arch} | {
        f"{arch}.{key}": value for key, value in metadata.items()
    }


def text_weights():
    """Return the tensors of text_model()."""
    weights = _weights(np.random.default_rng(5), 1)
    for name in ("attn_q", "attn_k", "attn_v"):
        weights[f"blk.0.{name}.bias"] = np.zeros(WIDTH, np.float32)
    return weights


def text_model(path):
    """Write a Qwen2-VL text model with the tokens and the template of images."""
    weights = text_weights()
    sections = {"rope.dimension_sections": np.array([2, 2, 2, 0], np.int32)}
    metadata = _metadata("qwen2vl", 1, **sections) | _vocabulary(TOKENS, TEMPLATE)
    return gguf_writer.write(path, metadata, weights)


def gemma3_model(path):
    """Write a Gemma 3 text model with a window of 24 tokens in one of two layers."""
    weights = _weights(np.random.default_rng(6), 2)
    ones = np.ones(WIDTH, np.float32)
    for i in range(2):
        for name in ("post_attention_norm", "post_ffw_norm"):
            weights[f"blk.{i}.{name}.weight"] = ones
        for name in ("attn_q_norm", "attn_k_norm"):
            weights[f"blk.{i}.{name}.weight"] = ones[: WIDTH // 2]
    more = {"attention.sliding_window": 24, "attention.sliding_window_pattern": 2}
    sizes = {"attention.key_length": WIDTH // 2, "attention.value_length": WIDTH // 2}
    tokens = ["<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>"]
    template = (
        "{% for m in messages %}<start_of_turn>{{ m.role }}\n{% for p in m.content %}"
        "{% if p.type == 'image' %}<start_of_image>{% else %}{{ p.text }}{% endif %}{% endfor %}<end_of_turn>\n"
        "{% endfor %}<start_of_turn>model\n"
    )
    metadata = _metadata("gemma3", 2, **more, **sizes) | _vocabulary(tokens, template)
    return gguf_writer.write(path, metadata, weights)


def ask(text, *pictures):
    return [*({"type": "image", "image": p} for p in pictures), {"type": "text", "text": text}]


# The tokens that transformers 5.24 generates with text_model() and the encoder qwen2vl after the message "the" with
# towers.image() of a size; see reference.generate().
ANSWERS = {
    (40, 56): [61, 229, 229, 229, 229, 196, 217, 89],
    (56, 40): [61, 229, 240, 119, 66, 275, 229, 240],
    (24, 72): [240, 229, 240, 3, 187, 89, 276, 240],
    (30, 30): [64, 184, 87, 7, 93, 75, 208, 208],
}


def parts_of(model):
    """Return the tokens before and after the image of that message."""
    encode = model.tokenizer.encode
    before = encode("<|im_start|>user\n<|vision_start|>", add_special=False)
    after = encode("<|vision_end|>the<|im_end|>\n<|im_start|>assistant\n", add_special=False)
    return before.tolist(), after.tolist()


def by_hand(ctx, vision, picture, n):
    """Answer one question without Chat."""
    before, after = parts_of(ctx.model)
    seq, found = ctx.sequence(), []

    def decode(add):
        batch = plait.Batch()
        add(batch)
        return ctx.decode(batch)

    decode(lambda batch: batch.add_sequence(before, seq=seq))
    decode(lambda batch: vision.encode(picture).add_to(batch, seq.pos, seq=seq))
    output = decode(lambda batch: batch.add_sequence(after, seq=seq))
    for _ in range(n):
        found.append(int(output.logits[0].argmax()))
        output = decode(lambda batch: batch.add_sequence(found[-1:], seq=seq))
    seq.close()
    return found
