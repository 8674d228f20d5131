"""Model.chat_template: rendered messages, and forbidden operations."""

import time

import plait
import pytest

from python import gguf_writer

CHATML = """{%- if tools %}<|im_start|>system
Tools: {{ tools | tojson }}<|im_end|>
{% endif %}
{%- for message in messages %}
    {%- if loop.first and message.role != 'system' and not tools %}<|im_start|>system
You are helpful.<|im_end|>
{% endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

LLAMA2 = (
    "{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + message['content'].strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' ~ message['content'] ~ eos_token }}{% endif %}{% endfor %}"
)

HELLO = [{"role": "user", "content": "Hi"}]
TALK = [*HELLO, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Bye"}]


@pytest.fixture
def render(tmp_path):
    def made(template, messages=HELLO, more=None, **options):
        keys = {"tokenizer.chat_template": template} | (more or {})
        path = gguf_writer.write(
            tmp_path / "m.gguf",
            gguf_writer.llama_metadata() | gguf_writer.vocabulary() | keys,
            gguf_writer.llama_weights(),
        )
        return plait.Model(path).chat_template.render(messages, **options)

    return made


def test_chatml(render):
    system = "<|im_start|>system\nYou are helpful.<|im_end|>\n"
    said = system + "<|im_start|>user\nHi<|im_end|>\n"
    assert render(CHATML) == said + "<|im_start|>assistant\n"
    assert render(CHATML, add_generation_prompt=False) == said
    tool = {"name": "f", "about": "<é>"}
    assert render(CHATML, tools=[tool]).startswith(
        '<|im_start|>system\nTools: [{"name": "f", "about": "<é>"}]<|im_end|>\n<|im_start|>user'
    )


def test_special_tokens_are_the_tokenizers(render, tiny):
    bos, eos = (tiny.tokenizer.token_bytes(t).decode() for t in (1, 2))
    assert render(LLAMA2, TALK) == f"{bos}[INST] Hi [/INST] Hello.{eos}{bos}[INST] Bye [/INST]"


def test_rules_of_the_template_are_the_callers_mistakes(render):
    with pytest.raises(ValueError, match="roles must alternate"):
        render(LLAMA2, HELLO * 2)
    with pytest.raises(ValueError, match="content"):
        render(CHATML, [{"role": "user"}])
    with pytest.raises(ValueError, match='message 1 has no "role"'):
        render(CHATML, [*HELLO, {"content": "x"}])
    with pytest.raises(TypeError, match=r"message 0.*str"):
        render(CHATML, ["Hi"])


def test_the_dialect(render):
    assert render("{{ x }}{% for a in [1, 2, 3] %}{% if a == 2 %}{% continue %}{% endif %}{{ a }}"
                  "{{ ',' if not loop.last }}{% endfor %}", x="y") == "y1,3"  # fmt: skip
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}") == "Hi"
    assert render("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
                  "{% endfor %}{{ ns.n }}") == "1"  # fmt: skip
    assert render("{{ strftime_now('%Y') }}") == time.strftime("%Y")
    assert render("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f('a') ~ 1 }}") == "<a>1"
    assert render("{{ {'b': 1, 'a': '<'} | tojson(indent=2) }}") == '{\n  "b": 1,\n  "a": "<"\n}'
    assert render("    {% if true %}\nx\n    {% endif %}\n") == "x\n"
    assert render("a", more={"tokenizer.chat_template.tool_use": "b"}, tools=[{}]) == "b"


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 1000000000 }}",
        "{{ [0] * 1000000000 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '{:>{}}'.format(1, 1000000000) }}",
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}"
        "{% set ns.x = y %}{% endfor %}",
        "{% set ns = namespace(x='aa') %}{% for i in range(60) %}{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
        "{% set ns = namespace(x=['a']) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ range(1000000000) | list }}",
        "{{ lipsum(100000) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.json }}",
    ],
)
def test_a_hostile_template_ends_soon(render, template, monkeypatch):
    monkeypatch.setattr("plait.tokenizer.chat_template._MAX_SECONDS", 0.5)
    start = time.monotonic()
    with pytest.raises((plait.ModelError, ValueError)):
        render(template)
    assert time.monotonic() - start < 3


def test_invalid_templates_are_refused(tiny, render):
    with pytest.raises(plait.UnsupportedError, match="no chat template"):
        _ = tiny.chat_template
    with pytest.raises(plait.ModelError, match=r"tokenizer.chat_template: line 2"):
        render("{% if x %}\n{% endfor %}")
    with pytest.raises(plait.ModelError, match="262145 characters"):
        render("x" * 262145)
    with pytest.raises(plait.ModelError, match="expected a string, got int"):
        render(7)
    with pytest.raises(plait.ModelError):
        render("{{ " + "(" * 5000 + ")" * 5000 + " }}")
