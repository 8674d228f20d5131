"""`plait chat` on a terminal, and commands that Ctrl-C ends keep what is done."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time

import pytest

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'user' %} Q: {{ m.content }} A:{% else %}{{ m.content }}{% endif %}"
    "{% endfor %}"
)
STORY = "Tom lives in Oslo. The kite is red."


class Terminal:
    """A command on a pseudo-terminal, whose output is read until a text appears."""

    def __init__(self, *args):
        self.ours, theirs = os.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "plait", *map(str, args)],
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env=os.environ | {"TERM": "dumb"},
            # The terminal becomes that of the process, so that Ctrl-C reaches it.
            preexec_fn=lambda: __import__("fcntl").ioctl(0, 0x540E, 0),
        )  # fmt: skip
        os.close(theirs)
        self.text = ""

    def until(self, pattern):
        """Read until the output since the last call matches."""
        deadline, start = time.monotonic() + 60, len(self.text)
        while not re.search(pattern, self.text[start:]):
            assert time.monotonic() < deadline, self.text
            if select.select([self.ours], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self.ours, 4096).decode(errors="replace")
                except OSError:  # EIO: the process has ended
                    assert re.search(pattern, self.text[start:]), self.text
        return self.text[start:]

    def send(self, text):
        os.write(self.ours, text.encode())

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.ours)


@pytest.fixture
def chat(tmp_path):
    template = tmp_path / "story.jinja"
    template.write_text(TEMPLATE)
    terminal = Terminal("chat", "demo", "--template", template, "-s", STORY, "-t", 0)
    yield terminal
    terminal.close()


def test_commands_confirm_and_unknown_ones_are_refused(chat):
    chat.until("> ")
    chat.send("/undo\n")
    chat.until(r"\(nothing to undo\)")
    chat.send("Where does Tom live?\n")
    chat.until(r"Tom lives in Oslo\.")
    chat.send("/undo\n")
    chat.until(r"\(removed 'Where does Tom live\?' and its answer\)")
    chat.send("What colour is the kite?\n")
    chat.until(r"The kite is red\.")
    chat.send("/reset\n")
    chat.until(r"unknown command '/reset'; expected /new, /undo, /help")
    chat.send("/help\n")
    chat.until("/undo: remove the last message")
    chat.send("/new\n")
    chat.until(r"new conversation; 2 messages removed")
    chat.send("\x04")
    assert chat.process.wait(20) == 0


def test_ctrl_c_at_the_prompt_and_line_editing(chat):
    pytest.importorskip("readline")
    chat.until("> ")
    chat.send("\x03")
    chat.until("press Ctrl-D to end")
    chat.send("What colour is the kute?\x08\x08\x08\x08ite?\n")
    chat.until(r"The kite is red\.")
    chat.send("\x1b[A\n")  # the last line again
    chat.until(r"The kite is red\.")
    chat.send("\n")
    assert chat.process.wait(20) == 0


def test_ctrl_c_ends_the_answer_and_not_the_program(tmp_path):
    from python import gguf_writer

    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}<assistant>"
    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary()
    metadata |= {"tokenizer.chat_template": template, "llama.context_length": 1 << 20}
    metadata.pop("tokenizer.ggml.eos_token_id", None)
    path = gguf_writer.write(tmp_path / "chat.gguf", metadata, gguf_writer.llama_weights())
    chat = Terminal("chat", path, "--n-ctx", 60000, "-n", 50000)
    try:
        chat.until("> ")
        chat.send("the hat\n")
        chat.until("the hat\r\n.{200}")
        chat.send("\x03")
        chat.until(r"\(interrupted\)")
        chat.send("/undo\n")
        chat.until(r"removed 'the hat' and its answer")
        chat.send("\x04")
        assert chat.process.wait(20) == 0
    finally:
        chat.close()


def interrupted(*args, after, **options):
    """Run a command, interrupt it after some seconds, and return its status and its output."""
    running = subprocess.Popen(
        [sys.executable, "-m", "plait", *map(str, args)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
        # Background processes may ignore the signal.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    time.sleep(after)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    return running.returncode, out, err


def test_an_interrupted_generation_of_several_prompts_keeps_what_is_done(tmp_path):
    prompts = [STORY + " Q: Where does Tom live? A:"] + [f"Mia has {n} dogs." for n in range(3)]
    args = ("generate", "demo", *prompts, "-n", 20000, "--n-ctx", 30000, "-t", 1.5, "--json")
    status, out, err = interrupted(*args, after=6)
    assert status == 130
    assert re.search(r"plait generate: interrupted; \d of 4 generations are complete", err)
    told = json.loads(out)["generations"]
    assert [one["prompt"] for one in told] == prompts
    assert all(one["tokens"] for one in told)


def test_an_interrupted_perplexity_is_that_of_the_tokens_so_far(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text((STORY + " ") * 40_000)
    args = ("perplexity", "demo", file, "--window", 64, "--json")
    status, out, err = interrupted(*args, after=10)
    assert status == 130, err
    told = json.loads(out)
    assert re.search(rf"interrupted after {told['tokens']} of \d+ tokens", err)
    assert told["perplexity"] > 1
