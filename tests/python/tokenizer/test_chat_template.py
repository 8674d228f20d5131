"""Model.chat_template: rendered messages, and forbidden operations."""

import time
import tracemalloc

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

# Two values that contain the same list 2^40 times each.
SHARED = (
    "{%% set a = %s %%}{%% set b = %s %%}"
    + "{% set a = (a, a) %}{% set b = (b, b) %}".replace("%", "%%") * 40
    + "{%% if %s %%}{%% endif %%}"
)

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
        "{{ range(100000) | join('%s') }}" % ("a" * 4000),
        "{{ '%s'.join([''] * 100000) }}" % ("a" * 4000),
        "{{ '%s'.join(range(100000) | map('string')) }}" % ("a" * 4000),
        "{{ range(10000) | list | tojson(indent='%s') }}" % ("a" * 30000),
        "{{ [0] | tojson(indent=10000000000) }}",
        "{{ '{0:{1}}'.format('x', '300000000') }}",
        "{{ '{0:{{>{1}}'.format('x', '300000000') }}",
        "{{ '%s'.format('') }}" % ("{0:9999}" * 32000),
        "{{ '%s' % {'a': ''} }}".replace("%s", "%(a)9999s" * 28000),
        "{{ '%(a)*d' % {'a': 1} }}",
        "{%% set l = range(300) | list %%}{{ [%s] | sum(start=[]) }}" % ("l," * 1000),
        SHARED % ("(0,)", "(0,)", "{}[a]"),
        SHARED % ("(0,)", "(0,)", "{a: 1}"),
        SHARED % ("(0,)", "(0,)", "{}.get(a)"),
        SHARED % ("[0]", "[0]", "a == b"),
        SHARED % ("[0]", "[0]", "a is eq b"),
        SHARED % ("[0]", "[0]", "a in [b]"),
        SHARED % ("[0]", "[0]", "a in ([b] | map('list'))"),
        SHARED % ("[0]", "[0]", "[[a], [b]] | map('list') | sort"),
        "{% set n = namespace(t=()) %}{% for i in range(100000) %}{% set n.t = (n.t,) %}{% endfor %}{{ {}[n.t] }}",
        "{% set n = namespace(x='a'.encode()) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{%% for i in range(100000) %%}%s{%% endfor %%}" % ("a" * 200000),
        "{%% for i in range(100000) %%}{{ '%s' }}{%% endfor %%}" % ("a" * 200000),
        "{%% set s = 'a' * 30000000 %%}{%% set l = [%s] %%}" % ("s[1:]," * 100),
        "{%% set n = namespace(x=[]) %%}{%% for i in range(100000) %%}{%% set n.x = [n.x, [%s]] %%}{%% endfor %%}"
        % ("0," * 1000),
        "{{ ('a ' * 100000) | wordwrap(1, wrapstring='%s') }}" % ("b" * 100000),
        "{{ ('<!---->' * 1000000) | striptags }}",
        "{% set n = namespace(x=[]) %}{% for i in range(24) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n }}",
        "{{ ('a' * 400000).rfind('ab' + 'a' * 200000) }}",
        "{{ ('a' * 900000).strip('b' * 900000 + 'a') }}",
        "{{ '" + "".join(map(chr, range(0x4E00, 0x5E00))) + "'.encode('punycode') }}",
        "{{ ('x' * 400000) | wordwrap(1) }}",
        "{{ %s }}" % ("9" * 5000),
    ],
)
def test_a_hostile_template_ends_soon(render, template, monkeypatch):
    monkeypatch.setattr("plait.tokenizer.chat_template._MAX_SECONDS", 0.5)
    start = time.monotonic()
    tracemalloc.start()
    try:
        with pytest.raises((plait.ModelError, ValueError)):
            render(template)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.monotonic() - start < 3
    assert peak < 300 << 20  # bytes


def test_ordinary_values_are_not_charged_as_widths(render):
    large = 1_700_000_000
    assert render("{{ x }} {{ x + 1 }} {{ [x] | tojson }} {{ x | tojson }}", x=large) == (
        f"{large} {large + 1} [{large}] {large}"
    )
    assert render("{{ 'at %d' % x }} {{ 'at {}'.format(x) }}", x=large) == f"at {large} at {large}"
    assert (
        render("{% if x > 1000000000 and x in [x] %}{{ x ~ 1 }}{% endif %}", x=large) == f"{large}1"
    )
    long = "a" * 100_000
    assert render("{{ [x, x] | join('\\n') }}", x=long) == f"{long}\n{long}"
    assert render("{{ '%s %s' % (x, x) }}", x=long) == f"{long} {long}"
    assert (
        render("{{ '{{{}}}'.format(x) }}{{ '100%% {:>4}' .format(x) }}", x="a") == "{a}100%%    a"
    )
    assert render("{% for a, b in [(1, 2)] %}{{ a + b }}{% endfor %}{% set x, y = 1, 2 %}{{ [x, y] | sum }}"
                  "{{ [[1], [2]] | sum(start=[]) }}{{ messages[::-1][0].role }}") == "33[1, 2]user"  # fmt: skip


def test_long_conversations_are_within_the_limits(render):
    """Templates count all messages for each message, or look at the first, or extend a list by it."""
    messages = [{"role": "user", "content": 2000 * "a"}] * 1000
    template = (
        "{% set ns = namespace(kept=[]) %}"
        "{% for message in messages[::-1] %}{% set index = messages|length - 1 - loop.index0 %}"
        "{% if index != messages|count or (messages|first).role != (messages|default([])|last).role %}"
        "{% set ns.kept = ns.kept + [message] %}{% endif %}{% endfor %}"
        "{% for message in ns.kept|reverse %}"
        "{{ message.get('content', '').rsplit('</think>', 1)[-1].strip('\n') | trim }}{% endfor %}"
    )
    assert render(template, messages) == 2000 * 1000 * "a"


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
