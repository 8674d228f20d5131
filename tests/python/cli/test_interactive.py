"""`plait chat` on a terminal, and commands that Ctrl-C ends keep what is done."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import signal
import subprocess
import sys
import termios
import time
from contextlib import suppress

import pytest

from python import gguf_writer

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'user' %} Q: {{ m.content }} A:{% else %}{{ m.content }}{% endif %}"
    "{% endfor %}"
)
PROMPT = r"[^>]*> $"  # keys that come before the prompt can be lost
STORY = "Tom lives in Oslo. The kite is red."


def _take_terminal() -> None:
    """Let Ctrl-C of the terminal at stdin reach this process, also if the tests run in the background."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """A command on a pseudo-terminal, whose output is read until a text appears."""

    def __init__(self, *args):
        self.ours, theirs = os.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "plait", *map(str, args)],
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env=os.environ | {"TERM": "dumb"},
            preexec_fn=_take_terminal,
        )  # fmt: skip
        os.close(theirs)
        self.text = ""

    def until(self, pattern, seconds=60):
        """Read until the output since the last call matches."""
        deadline, start = time.monotonic() + seconds, len(self.text)
        while not re.search(pattern, self.text[start:]):
            if time.monotonic() > deadline:
                raise TimeoutError(self.text)
            if select.select([self.ours], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self.ours, 4096).decode(errors="replace")
                except OSError:  # EIO: the process has ended
                    assert re.search(pattern, self.text[start:]), self.text
        return self.text[start:]

    def interrupt(self, pattern):
        """Press Ctrl-C and read until the output matches.

        Python drops a KeyboardInterrupt that is raised in a destructor, and input() notices a signal that arrives just
        before it waits only at the next key. So the key is pressed again if nothing happens.
        """
        for _ in range(5):
            self.send("\x03")
            with suppress(TimeoutError):
                return self.until(pattern, seconds=10)
        raise AssertionError(self.text)

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
    chat.until(r"\(nothing to undo\)" + PROMPT)
    chat.send("Where does Tom live?\n")
    chat.until(r"Tom lives in Oslo\." + PROMPT)
    chat.send("/undo\n")
    chat.until(r"\(removed 'Where does Tom live\?' and its answer\)" + PROMPT)
    chat.send("What colour is the kite?\n")
    chat.until(r"The kite is red\." + PROMPT)
    chat.send("/reset\n")
    chat.until(r"unknown command '/reset'; expected /new, /undo, /help" + PROMPT)
    chat.send("/help\n")
    chat.until(r"/undo: remove the last message" + PROMPT)
    chat.send("/new\n")
    chat.until(r"new conversation; 2 messages removed" + PROMPT)
    chat.send("\x04")
    assert chat.process.wait(20) == 0


def test_a_message_that_does_not_fit_does_not_end_the_program(tmp_path):
    template = tmp_path / "story.jinja"
    template.write_text(TEMPLATE)
    chat = Terminal("chat", "demo", "--template", template, "-t", 0, "--n-ctx", 30)
    try:
        chat.until("> ")
        chat.send("a b c d e f g h i j k l m n o p q r s t u v w x y z\n")
        chat.until(
            r"\(the last message has .* tokens .* but --n-ctx is 30; /undo and /new make room\)"
            + PROMPT
        )
        chat.send("Tom lives in Oslo. Where does Tom live?\n")
        chat.until(r"Oslo" + PROMPT)
    finally:
        chat.close()


def test_ctrl_c_at_the_prompt_and_line_editing(chat):
    pytest.importorskip("readline")
    chat.until("> ")
    chat.interrupt(r"press Ctrl-D to end" + PROMPT)
    chat.send("What colour is the kute?\x08\x08\x08\x08ite?\n")
    chat.until(r"The kite is red\." + PROMPT)
    chat.send("\x1b[A\n")  # the last line again
    chat.until(r"The kite is red\." + PROMPT)
    chat.send("\n")
    assert chat.process.wait(20) == 0


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """A model whose generations do not end by themselves."""
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}<assistant>"
    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary()
    metadata |= {"tokenizer.chat_template": template, "llama.context_length": 1 << 20}
    weights = gguf_writer.llama_weights()
    weights["output.weight"][gguf_writer.EOS] = 0  # not among the 40 most likely tokens
    path = tmp_path_factory.mktemp("models") / "endless.gguf"
    return gguf_writer.write(path, metadata, weights)


def test_ctrl_c_ends_the_answer_and_not_the_program(endless):
    chat = Terminal("chat", endless, "--n-ctx", 60000, "-n", 50000)
    try:
        chat.until("> ")
        chat.send("the hat\n")
        chat.until("(?s)the hat\r\n.{200}")
        chat.interrupt(r"\(interrupted\)" + PROMPT)
        chat.send("/undo\n")
        chat.until(r"removed 'the hat' and its answer" + PROMPT)
        chat.send("\x04")
        assert chat.process.wait(20) == 0
    finally:
        chat.close()


def interrupted(*args):
    """Run a command, press Ctrl-C once its progress is shown, and return its JSON and all of its output."""
    terminal = Terminal(*args, "--json")
    try:
        terminal.until(r"\d%, \d+ s left")
        terminal.interrupt("interrupted.*\r\n")
        assert terminal.process.wait(20) == 130
    finally:
        terminal.close()
    found = re.search(r"\{\n.*^\}", terminal.text.replace("\r\n", "\n"), re.MULTILINE | re.DOTALL)
    assert found, terminal.text
    return json.loads(found[0]), terminal.text


def test_an_interrupted_generation_of_several_prompts_keeps_what_is_done(endless):
    prompts = ["the hat", "in the", "an"]
    told, text = interrupted("generate", endless, *prompts, "-n", 50000, "--n-ctx", 60000)
    assert re.search(r"plait generate: interrupted; \d of 3 generations are complete", text)
    assert [one["prompt"] for one in told["generations"]] == prompts
    assert any(one["tokens"] for one in told["generations"])


def test_an_interrupted_perplexity_is_that_of_the_tokens_so_far(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text((STORY + " ") * 40_000)
    told, text = interrupted("perplexity", "demo", file, "--window", 64)
    assert re.search(rf"interrupted after {told['tokens']} of \d+ tokens", text)
    assert told["perplexity"] > 1
