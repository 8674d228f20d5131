"""Trains the demo model from nothing on one CPU core and writes it as a GGUF file.

    python bench/demo_training/train.py --out model.gguf        # needs torch and gguf; about half an hour

A story and its questions are one row of the batch: the story, then each question with its answer, every one at the
positions that follow the story, and attending to the story and to itself only. That is exactly what a context computes
that reads the story once and forks it for each question, so one pass over a story trains all of its questions.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
import vocab
from plait.demo import corpus
from torch import Tensor, nn
from torch.nn import functional

N_LAYER, N_EMBD, N_HEAD, N_HEAD_KV, N_FF = 4, 256, 8, 4, 512
HEAD = N_EMBD // N_HEAD
N_CTX, ROPE_BASE, NORM_EPS = 512, 500000.0, 1e-5
SMALL, LARGE = 500, 1000
"""Tokens a step, at first and later."""
PROMPT_WEIGHT = 0.1
"""What a token of the story or of a question counts in the loss; one of an answer counts 1."""


class Attention(nn.Module):
    """Causal attention in groups: heads share keys and values by twos."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(N_EMBD, N_EMBD, bias=False)
        self.k = nn.Linear(N_EMBD, N_HEAD_KV * HEAD, bias=False)
        self.v = nn.Linear(N_EMBD, N_HEAD_KV * HEAD, bias=False)
        self.output = nn.Linear(N_EMBD, N_EMBD, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """X (b, n, n_embd), cos and sin (b, 1, n, head / 2), mask (b, 1, n, n) -> like x."""
        b, n, _ = x.shape
        q = rotate(self.q(x).view(b, n, N_HEAD, HEAD).transpose(1, 2), turn)
        k = rotate(self.k(x).view(b, n, N_HEAD_KV, HEAD).transpose(1, 2), turn)
        v = self.v(x).view(b, n, N_HEAD_KV, HEAD).transpose(1, 2).float()
        group = N_HEAD // N_HEAD_KV
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.output(y.transpose(1, 2).reshape(b, n, N_EMBD))


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """RoPE over neighbouring pairs (2i, 2i + 1): the order in which a GGUF of architecture llama stores q and k."""
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    cos, sin = turn
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class Block(nn.Module):
    """Attention, then a gated feed-forward, each on its own norm and added to what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.attn_norm = nn.RMSNorm(N_EMBD, eps=NORM_EPS)
        self.attn = Attention()
        self.ffn_norm = nn.RMSNorm(N_EMBD, eps=NORM_EPS)
        self.gate = nn.Linear(N_EMBD, N_FF, bias=False)
        self.up = nn.Linear(N_EMBD, N_FF, bias=False)
        self.down = nn.Linear(N_FF, N_EMBD, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """As `Attention.forward`."""
        x = x + self.attn(self.attn_norm(x), turn, mask)
        h = self.ffn_norm(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """Architecture `llama` of GGUF; the embeddings are the output projection too."""

    def __init__(self, n_vocab: int, often: Tensor | None = None) -> None:
        super().__init__()
        self.token_embd = nn.Embedding(n_vocab, N_EMBD)
        self.blk = nn.ModuleList(Block() for _ in range(N_LAYER))
        self.output_norm = nn.RMSNorm(N_EMBD, eps=NORM_EPS)
        if often is not None:
            self.start(often)
        angle = torch.arange(N_CTX)[:, None] * ROPE_BASE ** (-torch.arange(0, HEAD, 2) / HEAD)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    @torch.no_grad()
    def start(self, often: Tensor) -> None:
        """Starts from a guess at the solution instead of from noise alone.

        That spares most of the plateau on which attention heads do not find each other (the idea of "mimetic
        initialisation", Trockman and Kolter 2023):

        - an embedding fills the first half of the residual stream, A, the shorter the more `often` its token occurs,
          and holds one fixed component, the last;
        - layer 0 gathers in the second half, B, what stands in A of the token itself and of the few before it: its
          keys are fixed, its queries are turned so that the scores peak at a distance, over the fast pairs of RoPE;
        - layer 2 looks for tokens with a like B, over the slow pairs of RoPE, not among its neighbours, over the fast
          ones, and adds their A and B to its own A;
        - everything else starts as small noise, or adds nothing.
        """
        half, n_slow = N_EMBD // 2, 18
        n_fast, group, block = HEAD - n_slow, N_HEAD // N_HEAD_KV, half // N_HEAD_KV
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nothing = "down" in name or "attn.output" in name
                nn.init.normal_(
                    p, std=0.0 if nothing else 0.01 if ".attn." in name else p.shape[1] ** -0.5
                )
        scale, fixed, fixed_key, far = (
            0.2,
            8.0,
            0.12,
            0.18,
        )  # the best of a hundred guesses, by answers right at once
        e = self.token_embd.weight
        e.normal_(std=scale)
        e *= (often[often > 1].median() / often).pow(0.75).clamp(0.1, 1.0)[:, None]
        e[:, half:] *= 0.1
        e[:, -1] = fixed * scale
        self.output_norm.weight.fill_(0.3)

        def views(attn: Attention) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            return (
                attn.q.weight.view(N_HEAD_KV, group, HEAD, N_EMBD),
                attn.k.weight.view(N_HEAD_KV, HEAD, N_EMBD),
                attn.v.weight.view(N_HEAD_KV, HEAD, N_EMBD),
                attn.output.weight.view(N_EMBD, N_HEAD_KV, group, HEAD),
            )

        angle = ROPE_BASE ** (-torch.arange(0, n_fast, 2) / HEAD)
        q, k, v, output = views(self.blk[0].attn)
        for i, distances in enumerate([(0, 3), (1, 5), (2, 6), (0, 4)]):
            a, b = (
                slice(i * block, (i + 1) * block),
                slice(half + i * block, half + (i + 1) * block),
            )
            q[i, :, :, -1] = k[i, :, -1] = v[i, :, -1] = 0.0
            k[i, 0:n_fast:2, -1] = fixed_key
            v[i, :, a] += torch.eye(HEAD)
            for j, distance in enumerate(distances):
                q[i, j, 0:n_fast:2, -1] = fixed_key * (angle * distance).cos()
                q[i, j, 1:n_fast:2, -1] = -fixed_key * (angle * distance).sin()
                output[b, i, j] += 0.35 * torch.eye(HEAD)
        output[-1] = 0.0
        q, k, v, output = views(self.blk[2].attn)
        for i in range(N_HEAD_KV):
            a, b = (
                slice(i * block, (i + 1) * block),
                slice(half + i * block, half + (i + 1) * block),
            )
            q[i, :, :, -1] = k[i, :, -1] = v[i, :, -1] = 0.0
            k[i, n_fast:, b] += 1.5 * torch.eye(HEAD)[:n_slow]
            k[i, 0:10:2, -1] = far
            v[i, :, a] += torch.eye(HEAD)
            v[i, :, b] += torch.eye(HEAD)
            for j in range(group):
                q[i, j, n_fast:, b] += 1.5 * torch.eye(HEAD)[:n_slow]
                q[i, j, 0:10:2, -1] = -far
                output[a, i, j] += 0.4 * torch.eye(HEAD)

    def forward(self, tokens: Tensor, pos: Tensor, mask: Tensor) -> Tensor:
        """Tokens, pos (b, n), mask (b, n, n) of what each token sees -> hidden states (b, n, n_embd)."""
        x = self.token_embd(tokens)
        turn = self.cos[pos][:, None], self.sin[pos][:, None]
        for block in self.blk:
            x = block(x, turn, mask[:, None])
        return self.output_norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states (..., n_embd) -> (..., n_vocab)."""
        return hidden @ self.token_embd.weight.T


@dataclass
class Row:
    """A story and its questions, laid end to end."""

    tokens: list[int]
    pos: list[int]
    part: list[int]  # 0 the story, i its i-th question
    target: list[int]  # the next token, or -1
    weight: list[float]


class Encoder:
    """The same ids as `Vocab.encode`, by looking words up."""

    def __init__(self, words: vocab.Vocab) -> None:
        self.ids: dict[str, int] = words.ids  # type: ignore[attr-defined]
        self.known: dict[str, list[int]] = {}

    def __call__(self, text: str) -> list[int]:
        """Token ids of a text of the corpus, BOS not among them."""
        out: list[int] = []
        for word in text.split(" "):
            ids = self.known.get(word)
            if ids is None:
                mark = [word[-1]] if word[-1] in ".?" else []
                ids = [self.ids[vocab.BLANK + word.rstrip(".?")], *(self.ids[m] for m in mark)]
                self.known[word] = ids
            out += ids
        return out


def row(encode: Encoder, s: corpus.Story) -> Row:
    """The story behind BOS, then every question with its answer and EOS."""
    story = [vocab.BOS, *encode(s.text)]
    n = len(story)
    # The last token of a story is followed by "Q:" in every question, which teaches nothing.
    r = Row(
        list(story), list(range(n)), [0] * n, [*story[1:], -1], [PROMPT_WEIGHT] * (n - 1) + [0.0]
    )
    for i, (question, answer) in enumerate(s.questions, 1):
        q, a = encode(corpus.prompt(question)), [*encode(answer), vocab.EOS]
        line = q + a
        r.tokens += line[:-1]
        r.pos += range(n, n + len(line) - 1)
        r.part += [i] * (len(line) - 1)
        r.target += line[1:]
        r.weight += [PROMPT_WEIGHT] * (len(q) - 1) + [1.0] * len(a)
    return r


def frequencies(encode: Encoder, n_vocab: int) -> Tensor:
    """How often each token occurs in a few hundred stories of the training split, at least once."""
    count = torch.ones(n_vocab)
    for s in corpus.stories(0, 500):
        count += torch.bincount(torch.tensor(row(encode, s).tokens), minlength=n_vocab)
    return count


def collate(rows: list[Row]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Tokens, positions, mask of what each sees (b, n, n), targets and weights (b, n) of rows made equally long."""
    n = max(len(r.tokens) for r in rows)

    def pad(name: str, fill: float) -> Tensor:
        return torch.tensor([getattr(r, name) + [fill] * (n - len(r.tokens)) for r in rows])

    part = pad("part", -1)
    causal = torch.ones(n, n, dtype=torch.bool).tril()
    mask = causal & ((part[:, None, :] == 0) | (part[:, None, :] == part[:, :, None]))
    return pad("tokens", 0), pad("pos", 0), mask, pad("target", -1), pad("weight", 0.0)


class Course:
    """Batches of stories, from simple ones to the real ones as `grown` goes from 0 to 1.

    At first a story tells of one kind of thing only, about many people, so that nothing but who or what the question
    names tells the answers apart; then stories become as long and as mixed as they are to be.
    """

    def __init__(self, encode: Encoder, seed: int) -> None:
        self.encode, self.rng = encode, random.Random(seed)
        self.pool: list[list[Row]] = []

    def draw(self, grown: float) -> corpus.Story:
        """A story of that stage."""

        def between(first: tuple[int, int], last: tuple[int, int]) -> tuple[int, int]:
            low, high = (round(a + grown * (b - a)) for a, b in zip(first, last, strict=True))
            return low, high

        most_kinds = round(1 + grown * (corpus.N_KINDS - 1))
        kinds = most_kinds - int(self.rng.random() * most_kinds * (1 - grown))
        facts, people = between((3, 5), corpus.FACTS), between((4, 6), corpus.N_PEOPLE)
        return corpus.story(self.rng, "train", facts, people, kinds)

    def next(self, grown: float, budget: int) -> tuple[Tensor, ...]:
        """A batch of about `budget` tokens; rows of like length are dealt together to spare padding."""
        if not self.pool:
            rows = [row(self.encode, self.draw(grown)) for _ in range(128)]
            rows.sort(key=lambda r: len(r.tokens))
            while rows:
                n = max(1, budget // len(rows[-1].tokens))
                self.pool.append(rows[-n:])
                rows = rows[:-n]
            self.rng.shuffle(self.pool)
        return collate(self.pool.pop())


@torch.no_grad()
def accuracy(
    model: Llama, encode: Encoder, seed: int, count: int, split: corpus.Split = "unseen"
) -> tuple[float, dict[str, int]]:
    """The share of questions answered right, and how often each kind of question went wrong.

    An answer is right if every token of it is the most likely one after those before it, which is when greedy
    decoding gives that answer.
    """
    told = list(corpus.stories(seed, count, split))
    right, wrong = 0, {}
    for begin in range(0, count, 50):
        part = told[begin : begin + 50]
        tokens, pos, mask, target, weight = collate([row(encode, s) for s in part])
        best = model.logits(model(tokens, pos, mask)).argmax(-1)
        miss = (best != target) & (weight == 1.0)
        for s, r, m in zip(part, (row(encode, s) for s in part), miss, strict=True):
            for i, (question, _) in enumerate(s.questions, 1):
                if any(m[j] for j, p in enumerate(r.part) if p == i):
                    kind = " ".join(question.split()[:2])
                    wrong[kind] = wrong.get(kind, 0) + 1
                else:
                    right += 1
    return right / (right + sum(wrong.values())), dict(sorted(wrong.items(), key=lambda kv: -kv[1]))


def train(words: vocab.Vocab, seed: int, steps: int, rate: float) -> Llama:
    """Trains on one thread; prints how it goes."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    encode = Encoder(words)
    model = Llama(len(words), frequencies(encode, len(words)))
    matrices = [p for p in model.parameters() if p.dim() == 2]
    norms = [p for p in model.parameters() if p.dim() == 1]
    optimiser = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.02}, {"params": norms, "weight_decay": 0.0}],
        lr=rate,
        betas=(0.9, 0.98),
        fused=True,
    )
    course = Course(encode, seed)
    smooth = 5.0
    began = time.monotonic()
    for step in range(steps):
        done = step / steps
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 100, 2 * (1 - done) + 0.01)
        # Many small steps find the way, larger ones settle it.
        grown = min(1.0, max(0.0, (done - 0.3) / 0.2))
        tokens, pos, mask, target, weight = course.next(grown, SMALL if done < 0.5 else LARGE)
        asked = weight > 0
        with torch.autocast(
            "cpu", torch.bfloat16
        ):  # matrix products only; attention stays in float
            logits = model.logits(model(tokens, pos, mask)[asked]).float()
        loss = functional.cross_entropy(logits, target[asked], reduction="none")
        weight = weight[asked]
        answers = loss[weight == 1.0].mean().item()
        optimiser.zero_grad()
        ((loss * weight).sum() / weight.sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        smooth += 0.02 * (answers - smooth)
        if step % 250 == 249:
            told, _ = accuracy(model, encode, 1, 40, "train")
            share, wrong = accuracy(model, encode, 1, 40)
            print(
                f"step {step + 1:5} of {steps}  {time.monotonic() - began:5.0f} s  grown {grown:.2f}  loss of answers "
                f"{smooth:.3f}  full stories: train {told:.1%} unseen {share:.1%} {wrong}",
                flush=True,
            )
    return model


def stored_name(parameter: str) -> str:
    """The name in a GGUF file of a parameter of `Llama`."""
    return re.sub(r"\.(gate|up|down)\.", r".ffn_\1.", parameter.replace("attn.", "attn_"))


def export(model: Llama, words: vocab.Vocab, path: Path) -> None:
    """Matrices as Q8_0, norms as F32; the embeddings are the output projection too, so they are stored once."""
    w = gguf.GGUFWriter(path, "llama")
    w.add_name("plait demo")
    w.add_description(
        "Reads a short story once and answers questions about it; trained from nothing by plait.demo.train"
    )
    w.add_license("MIT")
    w.add_context_length(N_CTX)
    w.add_embedding_length(N_EMBD)
    w.add_block_count(N_LAYER)
    w.add_feed_forward_length(N_FF)
    w.add_head_count(N_HEAD)
    w.add_head_count_kv(N_HEAD_KV)
    w.add_rope_dimension_count(HEAD)
    w.add_rope_freq_base(ROPE_BASE)
    w.add_layer_norm_rms_eps(NORM_EPS)
    w.add_vocab_size(len(words))
    w.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(words.pieces)
    w.add_token_scores(words.scores)
    w.add_token_types(words.kinds)
    w.add_bos_token_id(vocab.BOS)
    w.add_eos_token_id(vocab.EOS)
    w.add_unk_token_id(vocab.UNK)
    w.add_add_bos_token(True)
    w.add_add_eos_token(False)
    w.add_add_space_prefix(True)
    for name, p in model.named_parameters():
        name = stored_name(name)
        value = p.detach().numpy().astype(np.float32)
        if value.ndim == 1:
            w.add_tensor(name, value)
        else:
            q8 = gguf.GGMLQuantizationType.Q8_0
            w.add_tensor(name, gguf.quants.quantize(value, q8), raw_dtype=q8)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def load(path: Path) -> Llama:
    """The model of a file, its weights as they are in there: to measure what is shipped."""
    tensors = {t.name: t for t in gguf.GGUFReader(path).tensors}
    model = Llama(len(tensors["token_embd.weight"].data))
    with torch.no_grad():
        for name, p in model.named_parameters():
            t = tensors[stored_name(name)]
            p.copy_(torch.tensor(gguf.quants.dequantize(t.data, t.tensor_type)).reshape(p.shape))
    return model


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("model.gguf"))
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--rate", type=float, default=1e-3, help="highest learning rate")
    args = parser.parse_args()
    words = vocab.build()
    model = train(words, args.seed, args.steps, args.rate)
    export(model, words, args.out)
    share, wrong = accuracy(load(args.out), Encoder(words), 2, 1000)
    print(
        f"{args.out}: {args.out.stat().st_size} bytes, {share:.2%} of the answers on 1000 unseen stories; wrong {wrong}"
    )


if __name__ == "__main__":
    main()
