"""The command `plait`: its output, its error messages and its exit status."""

import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from contextlib import suppress

import numpy as np
import plait
import pytest
from plait.cli import COMMANDS, SHELLS, main
from plait.cli.arguments import open_model
from python.reference_data import model_path

QUESTION = "Tom lives in Oslo. The kite is red. Q: Where does Tom live? A:"
OTHER = "Mia has a dog. Mia lives in Rome. Q: Where does Mia live? A:"


@pytest.fixture
def run(capsys):
    def run(*args, status=0):
        assert main([str(arg) for arg in args]) == status
        out, err = capsys.readouterr()
        if status == 0:
            assert err == ""
        return out if status == 0 else err

    return run


@pytest.fixture
def run_json(run):
    return lambda *args: json.loads(run(*args, "--json"))


def shell(*args, **options):
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "plait", *map(str, args)],
        capture_output=True, text=True, timeout=60, check=False, **options,
    )  # fmt: skip


def test_help_names_every_command(run):
    text = run("--help")
    assert max(map(len, text.splitlines())) <= 80
    assert set(re.findall(r"^  (\w+)  ", text, re.MULTILINE)) == set(COMMANDS)
    assert plait.__version__ in run("--version")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert f"usage: plait {command}" in told
    assert max(map(len, told.splitlines())) <= 80


def on_terminal(*args, columns=80):
    """Return the output on a terminal of this width, and the exit status."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    running = subprocess.Popen(
        [sys.executable, "-m", "plait", *map(str, args)],
        stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
        env={name: value for name, value in os.environ.items() if name != "COLUMNS"},
    )  # fmt: skip
    os.close(theirs)
    sent = b""
    with suppress(OSError):  # EIO: the other end is closed
        while part := os.read(ours, 1 << 16):
            sent += part
    os.close(ours)
    return sent.decode(), running.wait(timeout=60)


@pytest.mark.parametrize("formatted", [True, False], ids=["rich", "plain"])
@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize(
    "args",
    [
        ("--help",),
        ("generate", "--help"),
        ("devices",),
        ("inspect", "demo", "--metadata", "--tensors", "--plan"),
        ("demo", "--seed", 7, "--more", 1, "--pace", 0),
        ("bench", "demo", "-p", 8, "-n", 2, "-b", 2, "-r", 1),
    ],
    ids=lambda args: args[0],
)
def test_a_terminal_is_wide_enough(args, columns, formatted, tmp_path, monkeypatch):
    if formatted:
        pytest.importorskip("rich", reason="plait[terminal] is not installed")
    else:
        without_rich(tmp_path, monkeypatch)
    sent, status = on_terminal(*args, columns=columns)
    assert status == 0, sent
    shown = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", sent).replace("\r\n", "\n")
    lines = [line.rpartition("\r")[2].rstrip() for line in shown.splitlines()]
    assert [line for line in lines if len(line) > columns and "/" not in line] == []
    assert ("\u2500" in sent) == (formatted and args[0] in ("devices", "inspect", "bench"))


def without_rich(folder, monkeypatch):
    """Let child processes run without rich."""
    (folder / "rich.py").write_text("raise ModuleNotFoundError(name='rich')\n")
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)


def test_a_pipe_gets_plain_text():
    for args in (["devices"], ["inspect", "demo", "--tensors"], []):
        done = shell(*args)
        assert "\x1b" not in done.stdout
        assert done.stdout.isascii()
        assert done.stderr == ""


@pytest.mark.parametrize("name", SHELLS)
def test_completion_knows_commands_and_options(run, name):
    pytest.importorskip("shtab", reason="plait[terminal] is not installed")
    script = run("--completion", name)
    for word in (*COMMANDS, "--max-tokens", "--api-key"):
        assert word in script
    assert "bash, zsh" in run("--completion", "csh", status=2)


def test_bash_completes_a_command(run, tmp_path):
    pytest.importorskip("shtab", reason="plait[terminal] is not installed")
    script = tmp_path / "completion.bash"
    script.write_text(run("--completion", "bash"))
    ask = f"source {script}; COMP_WORDS=(plait qua); COMP_CWORD=1; _shtab_plait; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(
        ["bash", "-c", ask], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["quantize"], done.stderr


def test_invalid_arguments_exit_with_2(run, capsys):
    assert "generate?" in run("generat", status=2)
    assert main([]) == 2
    for args in (["generate"], ["generate", "demo", "-n", "many"], ["devices", "--no-such"]):
        with pytest.raises(SystemExit) as ended:
            main(args)
        assert ended.value.code == 2
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["generate", "demo", "--split", "1,x"])
    assert (
        "expected numbers with commas between them, such as 3,1; got '1,x'"
        in capsys.readouterr().err
    )


def test_mistakes_are_one_line_and_exit_with_1(run, tmp_path, tiny_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(tiny_path.read_bytes()[:100] + b"\xff")
    for args, words in (
        (("inspect", tmp_path / "none.gguf"), "No such file"),
        (("inspect", broken), "broken.gguf"),
        (("generate", "demo", "-f", tmp_path / "none.txt"), "none.txt"),
        (("perplexity", "demo", broken), "UTF-8"),
        (("chat", "demo"), "chat template"),
        (("quantize", "demo", tmp_path / "x.gguf", "Q4_K"), "already quantised (Q8_0)"),
        (("quantize", "demo", broken, "Q4_K"), "--overwrite"),
    ):
        message = run(*args, status=1)
        assert message.startswith(f"plait {args[0]}: ")
        first, *hints = message.splitlines()
        assert words in first
        assert [hint[:7] for hint in hints] in ([], ["  try: "])
    assert [path.name for path in tmp_path.iterdir()] == ["broken.gguf"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("generate", "demo", "-n", "0", "x"), "--max-tokens is 0"),
        (("generate", "demo", "--threads", "0", "x"), "--threads: expected 1 to 1024"),
        (("generate", "demo", "--top-p", "2", "x"), "--top-p is 2"),
        (("generate", "demo", "--seed", "-1", "x"), "--seed is -1"),
        (("generate", "demo", "--type-k", "q9", "x"), "--type-k: expected one of f32"),
        (("generate", "demo", "--backend", "abacus", "x"), '--backend: expected "cpu"'),
        (("generate", "demo", "-t", "-1", "x"), "--temperature is -1"),
        (("generate", "hf:owner", "x"), "MODEL is 'hf:owner'"),
        (("serve", "demo", "--port", "99999"), "--port is 99999"),
        (("serve", "demo", "--n-ctx", "-4"), "--n-ctx is -4"),
        (("quantize", "demo", "none.gguf", "Q7"), '--type is "Q7"'),
        (("bench", "demo", "-p", "0"), "--prompt is '0'"),
        (("bench", "demo", "-p", "a"), "--prompt is 'a'"),
        (("bench", "demo", "-r", "0"), "--rounds is 0"),
    ],
)
def test_invalid_values_of_arguments_exit_with_2(run, args, message):
    told = run(*args, status=2)
    assert told.startswith(f"plait {args[0]}: {message}")
    assert len(told.splitlines()) <= 2


@pytest.mark.parametrize(
    ("args", "hint", "status"),
    [
        (("inspect", "none.gguf"), "demo as MODEL", 1),
        (("generate", "demo", "--backend", "abacus", "x"), "plait devices", 2),
        (("chat", "demo"), "--template FILE", 1),
    ],
)
def test_errors_suggest_what_to_try(run, args, hint, status):
    assert f"\n  try: {hint}" in run(*args, status=status)


def test_invalid_arguments_suggest_the_help(capsys):
    with pytest.raises(SystemExit):
        main(["generate", "demo", "--no-such"])
    assert capsys.readouterr().err == (
        "plait generate: unrecognized arguments: --no-such\n  try: plait generate --help\n"
    )


def test_a_traceback_is_shown_on_request(monkeypatch):
    monkeypatch.setenv("PLAIT_TRACEBACK", "1")
    with pytest.raises(plait.ModelError):
        main(["inspect", "none.gguf"])


def test_devices(run, run_json):
    assert "cpu" in run("devices")
    first, *_ = run_json("devices")
    assert first["name"] == "cpu"
    assert "scalar" in first["features"]


def test_inspect(run, run_json):
    text = run("inspect", "demo", "--metadata", "--tensors", "--kv", "streams", "--n-ctx", 100)
    model = plait.Model.demo()
    for name in (*model.metadata, *model.tensors):
        assert name in text
    assert "\x1b" not in text
    told = run_json("inspect", "demo", "--kv", "streams", "--n-ctx", 100, "--n-seq-max", 3)
    with plait.Context(model, kv="streams", n_ctx=100, n_seq_max=3) as ctx:
        assert told["memory"]["cache"] == ctx.kv.nbytes
        assert told["memory"]["compute"] == ctx.compute_bytes
        assert told["memory"]["n_cells"] == 300
    assert told["n_params"] == model.n_params
    assert len(told["tensors"]) == len(model.tensors)
    assert "memory" not in run_json("inspect", "demo")


def test_control_characters_of_a_file_do_not_reach_the_terminal(run, tmp_path):
    from python import gguf_writer

    name = "evil \x1b[31m\nname"
    metadata = gguf_writer.llama_metadata() | {"general.name": name} | gguf_writer.vocabulary()
    path = gguf_writer.write(tmp_path / "evil.gguf", metadata, gguf_writer.llama_weights())
    text = run("inspect", path, "--metadata")
    assert "\x1b" not in text
    assert r"evil \x1b[31m\nname" in text


def test_generate(run, run_json, tmp_path):
    greedy = ("-t", "0", "-n", "20")
    assert run("generate", "demo", *greedy, QUESTION) == QUESTION + " Tom lives in Oslo.\n"
    file = tmp_path / "prompt.txt"
    file.write_text(OTHER)
    text = run("generate", "demo", QUESTION, *greedy, "-f", file, "--kv", "streams")
    assert text == f"{QUESTION} Tom lives in Oslo.\n\n{OTHER} Mia lives in Rome.\n"
    one, two = run_json("generate", "demo", *greedy, QUESTION, OTHER)["generations"]
    assert one["finish_reason"] == two["finish_reason"] == "stop"
    assert one["text"] == " Tom lives in Oslo."
    assert one["logprob"] < 0
    assert plait.Model.demo().tokenizer.decode(one["tokens"]).strip() == one["text"].strip()
    seeded = ("generate", "demo", "-t", "2", "--seed", "7", "Tom")
    assert run(*seeded) == run(*seeded)


def test_generate_reads_standard_input():
    for dash in ([], ["-"]):
        done = shell("generate", "demo", "-t", "0", "-n", "20", *dash, input=QUESTION)
        assert done.stdout == QUESTION + " Tom lives in Oslo.\n", done.stderr


def test_chat_keeps_the_conversation_in_the_cache(tmp_path, monkeypatch, capsys):
    from io import StringIO

    from python import gguf_writer

    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}<assistant>"
    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary()
    metadata |= {"tokenizer.chat_template": template}
    path = gguf_writer.write(tmp_path / "chat.gguf", metadata, gguf_writer.llama_weights())
    lines = "the hat\nthe\n/undo\nthe\n/new\nthe hat\n\n"

    def talk(text):
        monkeypatch.setattr("sys.stdin", StringIO(text))
        assert main(["chat", str(path), "-s", "in", "-t", "0", "-n", "6"]) == 0
        return capsys.readouterr().out

    said = talk(lines).splitlines()
    assert len(said) == 4
    assert said[1] == said[2]  # after /undo the same question has the same answer
    assert said[3] == said[0]
    model = plait.Model(path)
    prompt = model.chat_template.render(
        [{"role": "system", "content": "in"}, {"role": "user", "content": "the hat"}]
    )
    events = plait.generate(model, prompt, 6, add_special=False)
    assert said[0].strip() == "".join(event.text for event in events).strip()


def test_chat_with_a_custom_template(tmp_path, monkeypatch, capsys):
    from io import StringIO

    template = tmp_path / "story.jinja"
    template.write_text(
        "{% for m in messages %}{% if m.role == 'user' %} Q: {{ m.content }} A:{% else %}{{ m.content }}{% endif %}"
        "{% endfor %}"
    )
    monkeypatch.setattr("sys.stdin", StringIO("Where does Tom live?\nWhat colour is the kite?\n"))
    story = "Tom lives in Oslo. The kite is red."
    assert main(["chat", "demo", "--template", str(template), "-s", story, "-t", "0"]) == 0
    assert capsys.readouterr().out == " Tom lives in Oslo.\n The kite is red.\n"


def test_embed(run, run_json, tmp_path):
    texts = ("a red kite", "a blue kite")
    (one, _) = run_json("embed", "demo", *texts)
    expected = plait.embed(plait.Model.demo(), texts)
    np.testing.assert_allclose(one["embedding"], expected[0], rtol=1e-6)
    text = run("embed", "demo", *texts)
    assert f"{expected[0] @ expected[1]:.3f}" in text
    run("embed", "demo", *texts, "-o", tmp_path / "rows")
    np.testing.assert_array_equal(np.load(tmp_path / "rows"), expected)


def test_embed_reads_the_lines_of_standard_input():
    """Only a line feed ends a line; blank lines are omitted."""
    lines = "a red kite\u2028in Oslo", "a\x0cblue kite", "a\x85dog"
    done = shell("embed", "demo", "--json", input="\r\n".join(lines) + "\n\n \n")
    assert tuple(row["text"] for row in json.loads(done.stdout)) == lines


def test_embed_cuts_long_texts(run, run_json, tmp_path):
    from python.model.test_encoders import tiny_bert

    weights = {"position_embd.weight": np.ones((16, 32), np.float32)}
    path = tiny_bert(tmp_path / "bert.gguf", {"bert.context_length": 16}, weights)
    text = "the hat in the rain " * 9
    message = run("embed", path, text, status=1)
    assert message.endswith(
        "tokens, but this model has positions for 16; pass --truncate to cut it\n"
    )
    (found,) = run_json("embed", path, text, "--truncate")
    expected = plait.embed(plait.Model(path), text, truncate=True)
    np.testing.assert_allclose(found["embedding"], expected[0], rtol=1e-6)


@pytest.mark.parametrize("n_ffn", [64, 96])
def test_compare_lists_values_of_equal_shapes(run, run_json, tiny_path, tmp_path, n_ffn):
    from python import gguf_writer

    weights = gguf_writer.llama_weights(seed=1)
    for name, rows in weights.items():
        if "ffn_down" in name:
            weights[name] = np.ascontiguousarray(rows[:, :n_ffn])
        elif "ffn_gate" in name or "ffn_up" in name:
            weights[name] = rows[:n_ffn]
    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary()
    metadata["llama.feed_forward_length"] = n_ffn
    path = gguf_writer.write(tmp_path / "other.gguf", metadata, weights)
    text = tmp_path / "text"
    text.write_text("the hat in the rain")
    asked = ("compare", tiny_path, path, "--text", text, "--threads", 1)
    found = run_json(*asked)
    expected = plait.kl_divergence(plait.Model(tiny_path), plait.Model(path), text.read_text())
    assert found["kl"] == pytest.approx(expected.mean)
    assert ("values" in found) == (n_ffn == gguf_writer.N_FFN)
    assert "KL divergence" in run(*asked)


def test_standard_error_may_be_closed(tmp_path):
    text = tmp_path / "text"
    text.write_text("Tom lives in Oslo. The kite is red.")
    for args, status in (
        (("perplexity", "demo", text), 0),
        (("perplexity", "demo", tmp_path / "none"), 1),
        (("no-such",), 2),
    ):
        done = shell(*args, preexec_fn=lambda: os.close(2))
        assert done.returncode == status
        assert ("perplexity" in done.stdout) == (status == 0)


def test_perplexity(run, run_json, tmp_path):
    text = "Tom lives in Oslo. The kite is red. " * 20
    file = tmp_path / "text.txt"
    file.write_text(text)
    told = run_json("perplexity", "demo", file, "--window", 32, "--stride", 16)
    assert told["perplexity"] == plait.perplexity(plait.Model.demo(), text, window=32, stride=16)
    assert f"{told['perplexity']:.4f}" in run("perplexity", "demo", file, "--window", 32)


def test_verify(run, run_json, tmp_path):
    receipt = tmp_path / "run.json"
    plait.score(plait.Model.demo(), "Tom lives in", [" Oslo", " Rome"], receipt=receipt)
    told = run_json("verify", receipt, "demo")
    assert told["calls"]["decode"] == told["equal_results"] > 0
    assert told["model"] == plait.Receipt.load(receipt).model["files"]
    text = run("verify", receipt, "demo")
    assert re.search(rf"^equal results +{told['equal_results']}$", text, re.MULTILINE)
    loaded = plait.Receipt.load(receipt)
    decode = next(i for i, call in enumerate(loaded.calls) if call["call"] == "decode")
    loaded.calls[decode]["sha256"] = "0" * 64
    loaded.save(receipt)
    message = f"plait verify: call {decode} (decode) gave another result: expected 000"
    assert message in run("verify", receipt, "demo", status=1)
    receipt.write_text("{}")
    assert "is not a receipt" in run("verify", receipt, "demo", status=1)
    assert "no such file" in run("verify", tmp_path / "none", "demo", status=1)


def test_bench(run, run_json):
    told = run_json("bench", "demo", "-p", 8, "-n", "2,3", "-b", 2, "-r", 2, "--threads", 1)
    names = [row["test"] for row in told["tests"]]
    assert names == ["pp 8", "tg 2", "tg 3", "btg 2 x 2"]
    assert all(len(row["rates"]["plait"]) == 2 for row in told["tests"])
    assert all(rate > 0 for row in told["tests"] for rate in row["rates"]["plait"])
    assert "plait t/s" in run("bench", "demo", "-p", 8, "-n", "", "-b", "", "-r", 1)


def test_demo(run):
    text = run("demo", "--seed", 7, "--more", 0, "--threads", 1)
    assert "The cache (unified)" in text


def test_a_closed_output_is_not_an_error():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "plait", "inspect", "demo", "--tensors"],
        stdout=write, stderr=subprocess.PIPE, timeout=60, check=False,
    )  # fmt: skip
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_interrupted_it_exits_with_130():
    running = subprocess.Popen(
        [sys.executable, "-m", "plait", "perplexity", "demo", "-"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        # Background processes may ignore the signal.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert running.stdin is not None
    running.stdin.write(
        b"The kite is red. " * 50_000
    )  # more than a pipe holds, so it is being read
    running.stdin.flush()
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=30)
    assert (running.returncode, err) == (130, b"")


@pytest.mark.parametrize(
    ("name", "repo", "file"),
    [
        ("hf:me/models", "me/models", None),
        ("hf:me/models/", "me/models", None),
        ("hf:me/models/some/a:b.gguf", "me/models", "some/a:b.gguf"),
        ("hf:me/models:some/a:b.gguf", "me/models", "some/a:b.gguf"),
    ],
)
def test_a_hub_model_may_have_a_file(monkeypatch, name, repo, file):
    monkeypatch.setattr(plait.Model, "from_hub", lambda *asked: asked)
    assert open_model(name) == (repo, file)


@pytest.mark.parametrize("name", ["hf:nope", "hf:", "hf:/x", "hf:a/", "hf:a:x/y"])
def test_a_hub_model_without_owner_and_name_is_refused_at_once(run, name):
    message = run("inspect", name, status=2)
    assert f"MODEL is {name!r}; expected hf:owner/name or hf:owner/name/file" in message


def test_a_prompt_is_not_echoed_by_a_model_that_cannot_generate(data_dir):
    done = subprocess.run(
        [
            sys.executable, "-m", "plait", "generate",
            data_dir / "conformance" / "bert" / "model.gguf", "Hello",
        ],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout == ""
    assert "plait generate: " in done.stderr


def test_an_importance_matrix_is_made_and_used(run, tiny_path, tmp_path):
    text, made, out = (tmp_path / name for name in ("text", "m.gguf", "out.gguf"))
    text.write_text("the cat sat on the mat. " * 40)
    found = json.loads(run("imatrix", tiny_path, text, "-o", made, "--window", 16, "--json"))
    assert found["output"] == str(made)
    assert found["matrices"] > 10
    assert found["tokens"] % 16 == 0
    assert "--overwrite" in run("imatrix", tiny_path, text, "-o", made, status=1)
    bpw = ("--budget", "9bpw", "--text", text)
    done = json.loads(run("quantize", tiny_path, out, *bpw, "--imatrix", made, "--json"))
    model = plait.Model(tiny_path)
    assert done["bytes_after"] <= 9 / 32 * model.nbytes
    assert "Q8_0" in done["types"] or "Q5_1" in done["types"]
    again = json.loads(run("quantize", tiny_path, out, *bpw, "--resume", "--overwrite", "--json"))
    assert again["bytes_after"] <= 9 / 32 * model.nbytes
    assert not list(tmp_path.glob("*.measurements.jsonl"))


def test_quantize_warns_of_types_that_do_not_fit(run, tiny_path, tmp_path):
    out = tmp_path / "out.gguf"
    assert "pass --allow-fallback" in run("quantize", tiny_path, out, "Q4_K", status=1)
    assert not out.exists()
    done = subprocess.run(
        [sys.executable, "-m", "plait", "quantize", tiny_path, out, "Q4_K", "--allow-fallback"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "warning: quantize_file: 16 of 16 matrices cannot be stored as Q4_K" in done.stderr


@pytest.mark.parametrize(
    ("args", "message", "status"),
    [
        (("generate", "demo", "--n-ctx", "3", "Tom lives in Oslo."), "--n-ctx is 3", 1),
        (("quantize", "demo", "out.gguf", "Q4_K"), "pass --requantize to do it anyway", 1),
        (("perplexity", "demo", "text", "--window", "1"), "--window is 1", 2),
        (("perplexity", "demo", "text", "--window", "-5"), "--window is -5", 2),
        (("perplexity", "demo", "none"), "perplexity: none: No such file or directory", 1),
        (("generate", "demo", "x", "-n", "-3"), "generate: --max-tokens is -3", 2),
        (("generate", "demo", "x", "--threads", "100000"), "--threads: expected 1 to 1024", 2),
        (("quantize", "demo", "out.gguf"), "0 types were given; pass one TYPE, or --budget", 2),
        (("quantize", "demo", "out.gguf", "Q4_K", "--type", "Q5_K"), "2 types were given", 2),
        (("quantize", "demo", "out.gguf", "--budget", "4bpw"), "--budget needs --text FILE", 2),
        (
            ("quantize", "demo", "out.gguf", "Q4_K", "--budget", "4"),
            "both --budget and TYPE (Q4_K)",
            2,
        ),
        (
            ("quantize", "demo", "out.gguf", "--budget", "4 GB", "--text", "text"),
            "such as 4.5bpw",
            2,
        ),
        (("quantize", "demo", "out.gguf", "Q4_K", "--imatrix", "text"), "GGUF", 1),
        (("quantize", "demo", "out.gguf", "Q4_K", "--imatrix", ""), "No such file", 1),
        (("quantize", "demo", "out.gguf", "--budget", "", "--text", "text"), '--budget is ""', 2),
        (
            ("quantize", "demo", "out.gguf", "Q4_K", "--text", "text"),
            "--text is only for --budget",
            2,
        ),
        (
            (
                "quantize",
                "demo",
                "out.gguf",
                "--budget",
                "4",
                "--text",
                "text",
                "--output-type",
                "F16",
            ),
            "both --budget and --output-type F16",
            2,
        ),
        (("imatrix", "demo", "text", "--window", "0"), "--window", 2),
        (("imatrix", "demo", "nowhere"), "nowhere", 1),
        (("quantize", "demo", "out.gguf", "Q99"), 'quantize: --type is "Q99"', 2),
    ],
)
def test_messages_name_options(run, tmp_path, monkeypatch, args, message, status):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("Tom lives in Oslo. The kite is red.")
    told = run(*args, status=status)
    assert message in told
    assert "_" not in re.sub(r"Q\d_\w|quantize_file|token_logprobs", "", told)


def test_words_that_are_not_arguments_stay(run, data_dir):
    told = run("embed", model_path(data_dir, "t5"), "a red kite", status=1)
    assert "an encoder-decoder, whose output is not pooled" in told


def test_only_options_of_the_command_are_suggested(run):
    told = run("inspect", "demo", "--n-ctx", "2000000000", status=1)
    assert "; choose a smaller --n-ctx or --n-seq-max, or smaller --type-k and --type-v" in told
    told = run("generate", "demo", "--n-ctx", "2000000000", "x", status=1)
    assert "; choose a smaller --n-ctx, or smaller --type-k and --type-v" in told


def test_help_of_the_context_tells_where_it_differs(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    for command in ("inspect", "generate", "chat", "serve", "perplexity", "compare", "bench"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        told = capsys.readouterr().out
        assert "without it, the command chooses a length that suits it" in told
        assert "neon_bf16; or blas" in told


def test_a_conversation_goes_on_after_an_empty_line_of_a_file(tmp_path):
    template = tmp_path / "plain.jinja"
    template.write_text("{% for m in messages %}{{ m.content }} {% endfor %}")
    done = shell(
        "chat", "demo", "--template", template, "-n", 2, "-t", 0, input="Tom lives in\n\n \nMia has\n"
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2


def test_json_has_each_list_of_numbers_on_one_line(run):
    text = run("embed", "demo", "a red kite", "a [1,\n 2] kite", "--json")
    told = json.loads(text)
    assert len(told[0]["embedding"]) > 100
    assert told[1]["text"] == "a [1,\n 2] kite"
    assert len(text.splitlines()) == 2 + 2 * 4


def test_bench_of_an_encoder_measures_encoding(run_json, tmp_path):
    from python.model.test_encoders import tiny_bert

    path = tiny_bert(tmp_path / "bert.gguf")
    told = run_json("bench", path, "-p", "8,100000", "-b", 2, "-r", 1)
    limit = plait.Model(path).n_ctx_train
    names = [row["test"] for row in told["tests"]]
    assert names == ["enc 1 x 8", f"enc 1 x {limit}", "enc 2 x 8", f"enc 2 x {limit}"]
    assert all(rate > 0 for row in told["tests"] for rate in row["rates"]["plait"])
