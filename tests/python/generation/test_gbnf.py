"""Grammars in llama.cpp's notation: the same texts as by their definition, character by character. Needs llguidance."""

from __future__ import annotations

import itertools
import random
import re

import numpy as np
import plait
import pytest

pytest.importorskip("llguidance")
from plait import Grammar
from plait.generation.grammar import Matchers
from plait.tokenizer.bpe import byte_alphabet

ARITHMETIC = r"""root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""


@pytest.fixture(scope="module")
def by_byte():
    """A tokenizer with a token per byte."""
    return plait.Tokenizer({
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*byte_alphabet(), "<|end|>"],
        "tokenizer.ggml.token_type": np.array([1] * 256 + [3], np.int32),
        "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.eos_token_id": 256,
    })  # fmt: skip


def accepts(tokenizer, grammar, text):
    matchers = Matchers(grammar, tokenizer)
    for token in [*tokenizer.encode(text, add_special=False).tolist(), tokenizer.eos]:
        word = matchers.masks([0])[0, token // 32]
        if not word >> token % 32 & 1:
            return False
        if token != tokenizer.eos:
            matchers.accept(0, token)
    return True


@pytest.mark.parametrize(
    ("rules", "texts", "others"),
    [
        (ARITHMETIC, ["1=1\n", "4\t\t = r\n", "1+2=3\n(4) = x_1\n\n"], ["1=1", "=1\n", "1+=2\n"]),
        ('root ::= word (" " word)* "."\nword ::= [a-zA-Z.\']+', ["a b.", "St. Ives.", "a.."], ["a", "."]),
        ('root ::= "v" num "." num\nnum ::= [0-9.]+', ["v1.2", "v1.2.3", "v..."], ["v1.", "v1"]),
        ('root ::= ("a" | "ab") "b"', ["ab", "abb"], ["a", "b"]),
        (r'root ::= "<think>" [^\x01]* "</think>" "y"', ["<think>a</think>y", "<think></think>y</think>y"], ["y"]),
        (r'root ::= "\u00e9\U0001F600\x41" "\"\\"', ['é😀A"\\'], ["e"]),
        ("root ::= start Ab ab\nstart ::= [a&&b]\nAb ::= .\nab ::= [^^\\]-]", ["a\nx", "&é["], ["ab]", "c.x"]),
        ('root ::= "a"{2} "b"{1,2} "c"{1,} "d"{0,1} "e"?', ["aabc", "aabbcccde"], ["abc", "aabbb", "aabcdd"]),
        ('root ::= "a"{0} ("b" "c"){0,0} "d" "e"{00}*', ["d"], ["ad", "bcd", "de"]),
        ('# a comment\nroot ::= ( # "x"\n  "a"\n  | "b"\n)* | "c"\n  | ""', ["", "abba", "c"], ["ac", "cc"]),
        ("root ::= [-a] [b-] [/] a-b_1\na-b_1 ::= ([x-z] \"\")*", ["-b/", "a-/xyz"], ["a/", "-b/w"]),
    ],
)  # fmt: skip
def test_texts_are_those_of_llama_cpp(by_byte, rules, texts, others):
    grammar = Grammar.of(rules)
    for text in texts:
        assert accepts(by_byte, grammar, text), text
    for text in others:
        assert not accepts(by_byte, grammar, text), text


def random_rules(luck, depth=0):
    """A random expression, as (text in GBNF, regular expression for the module re)."""
    kind = luck.randrange(5 if depth < 3 else 2)
    if kind == 0:
        literal = "".join(luck.choice("ab") for _ in range(luck.randrange(1, 4)))
        return f'"{literal}"', literal
    if kind == 1:
        return luck.choice([("[a]", "[a]"), ("[^b]", "[^b]"), ("[ab]", "[ab]")])
    if kind == 2:
        found = [random_rules(luck, depth + 1) for _ in range(luck.randrange(2, 4))]
        return "(" + " | ".join(a for a, _ in found) + ")", "(?:" + "|".join(
            b for _, b in found
        ) + ")"
    if kind == 3:
        found = [random_rules(luck, depth + 1) for _ in range(luck.randrange(2, 4))]
        return " ".join(a for a, _ in found), "".join(f"(?:{b})" for _, b in found)
    text, pattern = random_rules(luck, depth + 1)
    times = luck.choice(["*", "+", "?", "{2}", "{1,2}", "{1,}", "{0}"])
    return f"({text}){times}", f"(?:{pattern}){times}"


def test_random_rules_accept_what_a_regular_expression_does(by_byte):
    words = ["".join(word) for n in range(5) for word in itertools.product("ab", repeat=n)]
    for seed in range(60):
        text, pattern = random_rules(random.Random(seed))
        grammar = Grammar.gbnf(f"root ::= {text}")
        for word in words:
            wanted = re.fullmatch(pattern, word) is not None
            assert accepts(by_byte, grammar, word) == wanted, (text, word)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("x ::= [a]", "no rule `root`"),
        ("root ::= x", "'x' is used but not defined"),
        ('root ::= "a', "end of the literal"),
        ("root ::= [a", "end of the literal or of the class"),
        ("root ::= []", r"a character between \[ and \]"),
        ("root ::= [b-a]", r"from U\+0062 on"),
        ('root ::= ("a"', r"line 1: expected \), got the end"),
        ('root ::= "a"{3,1}', "at least 3"),
        ('root ::= "\\q"', "an escape"),
        ('root ::= "\\ud800"', "a Unicode character"),
        ('root ::= "a" )', "the end of the rule"),
        ('root = "a"', "expected ::="),
        ("root ::= <", "a token"),
        ('root ::= "a"\n? "b"', "line 2: expected the name of a rule"),
        ("root ::= " + 100_000 * "(" + "[a]" + 100_000 * ")", "nested too deeply"),
    ],
)
def test_what_is_not_gbnf_is_refused(rules, message):
    with pytest.raises(ValueError, match=message):
        Grammar.gbnf(rules)


def test_a_generation_ends(demo_model):
    (done,) = plait.complete(
        demo_model, "The sum: ", 60, plait.Sampler(seed=3, grammar=Grammar.gbnf(ARITHMETIC))
    )
    assert re.match(r"[a-z0-9(]", done.text)
