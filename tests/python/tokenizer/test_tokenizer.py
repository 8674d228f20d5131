"""Tokenizers, compared with stored vectors and slow reference implementations, and damaged files."""

import gzip
import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import plait
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plait.tokenizer import TokenStream, bpe, vocabulary
from plait.tokenizer.bpe import byte_alphabet
from plait.tokenizer.patterns import PRE_TOKENIZERS
from plait.tokenizer.stream import clean_up_spaces

SPACE = "\u2581"
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
VOCABULARIES = (
    "bert-bge", "deepseek-coder", "falcon", "gemma-4", "gpt-2", "llama-bpe", "llama-spm", "qwen2", "starcoder",
)  # fmt: skip
relaxed = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="session")
def load(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Return the tokenizer of a vocabulary of the reference data, read once."""
    folder, made = tmp_path_factory.mktemp("vocab"), {}

    def get(name: str) -> plait.Tokenizer:
        if name not in made:
            path = data_dir / "vocab" / f"ggml-vocab-{name}.gguf"
            if name == "stories260K":
                path = data_dir / "models" / "stories260K-f32.gguf"
            elif not path.exists():
                with gzip.open(f"{path}.gz") as packed, open(folder / path.name, "wb") as plain:
                    shutil.copyfileobj(packed, plain)
                path = folder / path.name
            made[name] = plait.Tokenizer.from_gguf(path)
        return made[name]

    return get


def metadata(model: str, tokens: list[str], types: list[int] | None = None, **more: Any) -> dict:
    """Return tokenizer keys as the GGUF reader does."""
    values = {"model": model, "tokens": tokens, **more}
    if types is not None:
        values["token_type"] = np.array(types, np.int32)
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


def byte_bpe(words: tuple[str, ...] = (), **more: Any) -> plait.Tokenizer:
    """Return a vocabulary of all 256 bytes, then `words`, then control tokens."""
    tokens = [*byte_alphabet(), *words]
    types = [NORMAL] * 256 + [CONTROL] * len(words)
    return plait.Tokenizer(
        metadata("gpt2", tokens, types, **{"merges": [], "pre": "gpt-2", **more})
    )


def spm_metadata(words: dict[str, float], **more: Any) -> dict:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(words)
    scores = np.array([0.0] * 259 + list(words.values()), np.float32)
    return metadata("llama", tokens, types, scores=scores, **more)


def unigram_metadata(words: dict[str, float], **more: Any) -> dict:
    tokens = ["<pad>", "</s>", "<unk>", *words]
    types = [CONTROL, CONTROL, UNKNOWN] + [NORMAL] * len(words)
    scores = np.array([0.0] * 3 + list(words.values()), np.float32)
    return metadata("t5", tokens, types, scores=scores, **more)


def plamo_metadata(words: dict[str, float], **more: Any) -> dict:
    special = ["<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>", "<|plamo:pad|>"]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    types = [UNKNOWN] + [CONTROL] * 3 + [BYTE] * 256 + [NORMAL] * len(words)
    scores = np.array([0.0] * 260 + list(words.values()), np.float32)
    return metadata("plamo2", tokens, types, scores=scores, **more)


class TestReferenceVectors:
    """Ids and texts computed by llama.cpp."""

    @pytest.mark.parametrize("name", VOCABULARIES)
    def test_ids(self, load, data_dir, name):
        base = data_dir / "vocab" / f"ggml-vocab-{name}.gguf"
        with open(f"{base}.inp", newline="", encoding="utf-8") as file:
            texts = file.read().split("\n__ggml_vocab_test__\n")
        lines = Path(f"{base}.out").read_text(encoding="utf-8").split("\n")
        assert len(texts) > 40
        for text, line in zip(texts, lines, strict=False):
            ids = load(name).encode(text, add_special=False, parse_special=False)
            assert ids.dtype == np.int32
            assert ids.tolist() == [int(word) for word in line.split()], text

    @pytest.mark.parametrize("name", [*VOCABULARIES, "stories260K"])
    def test_special_tokens_and_text(self, load, data_dir, name):
        tokenizer = load(name)
        cases = json.loads((data_dir / "vocab" / f"extra-{name}.json").read_text("utf-8"))["cases"]
        for case, special, parse in itertools.product(cases, (0, 1), (0, 1)):
            ids = tokenizer.encode(case["text"], bool(special), bool(parse))
            assert ids.tolist() == case[f"tokens_special{special}_parse{parse}"], case["text"]
        for case, shown in itertools.product(cases, (0, 1)):
            text = tokenizer.decode(case["tokens_special0_parse1"], skip_special=not shown)
            assert text == case[f"detok_unparse{shown}"]

    def test_prompts_of_stories(self, load, data_dir):
        reference = json.loads((data_dir / "models" / "stories260K-ref.json").read_text("utf-8"))
        for generation in reference["generations"]:
            ids = load("stories260K").encode(generation["prompt"])
            assert ids.tolist() == generation["prompt_tokens"]

    def test_sentences_of_minilm(self, data_dir):
        models = data_dir / "models"
        tokenizer = plait.Tokenizer.from_gguf(models / "all-MiniLM-L6-v2-f16.gguf")
        with np.load(models / "all-MiniLM-L6-v2-ref.npz") as reference:
            for text, ids, n in zip(
                reference["sentences"], reference["token_ids"], reference["token_lens"], strict=True
            ):
                assert tokenizer.encode(str(text)).tolist() == ids[:n].tolist()


class TestRoundTrip:
    @pytest.mark.parametrize("name", ["gpt-2", "qwen2", "llama-spm", "stories260K"])
    @given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters=SPACE)))
    @relaxed
    def test_byte_complete_vocabularies_lose_nothing(self, load, name, text):
        tokenizer = load(name)
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        assert tokenizer.decode(ids, skip_special=False, clean_up=False) == text

    @pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
    @given(text=st.text(st.characters(exclude_categories=["Cs"])))
    @settings(relaxed, max_examples=10)
    def test_every_pre_tokenizer_loses_nothing(self, pre, text):
        tokenizer = byte_bpe(pre=pre) if PRE_TOKENIZERS[pre].byte_level else utf8_bpe(pre)
        text = text.replace(SPACE, "")
        if PRE_TOKENIZERS[pre].words_only:
            text = "".join(text.split())
        ids = tokenizer.encode(text, add_special=False)
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()

    @pytest.mark.parametrize("name", ["bert-bge", "gpt-2", "llama-spm", "qwen2"])
    @given(data=st.data(), skip=st.booleans())
    @relaxed
    def test_stream_joined_is_decode(self, load, name, data, skip):
        tokenizer = load(name)
        word = st.sampled_from(["'s", " '", "' ", " 're", " .", "  ", "r", "e", "\u6f22", " a"])
        texts = data.draw(st.lists(word | st.text(max_size=3), max_size=8))
        texts = [text.encode("utf-8", "ignore").decode() for text in texts]
        ids = [int(i) for text in texts for i in tokenizer.encode(text, parse_special=False)]
        extra = st.lists(st.integers(0, tokenizer.n_vocab - 1), max_size=4)
        ids = data.draw(st.permutations(ids + data.draw(extra)))
        stream = tokenizer.stream(skip_special=skip)
        pieces = [stream.push(token) for token in ids]
        assert "".join(pieces) + stream.flush() == tokenizer.decode(ids, skip_special=skip)


def utf8_bpe(pre: str) -> plait.Tokenizer:
    """All 256 byte tokens and the character for a space."""
    tokens = [*(f"<0x{byte:02X}>" for byte in range(256)), SPACE]
    return plait.Tokenizer(
        metadata("gpt2", tokens, [BYTE] * 256 + [NORMAL], merges=[], pre=pre, bos_token_id=0)
    )


class TestStream:
    def test_characters_are_not_split(self):
        tokenizer = byte_bpe()
        stream = tokenizer.stream()
        data = "a\u00e9\U0001f600".encode()
        assert [stream.push(int(tokenizer.encode("a")[0]))] == ["a"]
        pieces = [stream.push(byte) for byte in data[1:]]
        assert pieces == ["", "\u00e9", "", "", "", "\U0001f600"]
        assert stream.flush() == ""

    def test_broken_characters(self):
        stream = byte_bpe().stream()
        assert stream.push(0xE2) == ""  # may become a character
        assert stream.push(0x61) == "\ufffda"  # can no longer become one
        assert stream.push(0xFF) == "\ufffd"  # can never become one
        assert stream.push(0xF0) + stream.flush() == "\ufffd"
        assert stream.push(0x62) == "b"

    def test_an_invalid_id_leaves_the_stream_unharmed(self):
        stream = byte_bpe().stream()
        assert stream.push(0xC3) == ""
        with pytest.raises(IndexError, match="256"):
            stream.push(256)
        with pytest.raises(TypeError):
            stream.push(1.5)
        assert stream.push(0xA9) == "\u00e9"

    def test_space_at_the_start(self, load):
        tokenizer = load("llama-spm")
        ids = tokenizer.encode("world", add_special=False)
        assert tokenizer.stream().push(ids[0]) == "world"
        assert tokenizer.stream(continuing=True).push(ids[0]) == " world"
        assert isinstance(tokenizer.stream(), TokenStream)
        stream = tokenizer.stream()
        assert [stream.push(ids[0]) + stream.flush() for _ in range(2)] == ["world"] * 2

    @given(st.text(st.sampled_from(" '.?srevm a"), max_size=30))
    @settings(deadline=None, max_examples=400)
    def test_clean_up_does_not_depend_on_the_cuts(self, text):
        stream = byte_bpe().stream(clean_up=True)
        assert "".join(map(stream.push, text.encode())) + stream.flush() == clean_up_spaces(text)

    @pytest.mark.parametrize(
        ("text", "clean"),
        [
            ("a . b ?", "a. b?"),
            ("it 's we 're I 'm you 've", "it's we're I'm you've"),
            ("they 'd 'll don 't", "they 'd 'll don 't"),
            ("a ' b", "a'b"),
            ("a  ' s", "a's"),  # the second pass creates a match for the third
        ],
    )
    def test_clean_up(self, text, clean):
        tokenizer = byte_bpe()
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == clean
        assert tokenizer.decode(ids, clean_up=False) == text


class TestSpm:
    WORDS = st.dictionaries(
        st.text(f"ab{SPACE}", min_size=1, max_size=4), st.integers(-5, 0), min_size=1, max_size=25
    )

    @given(words=WORDS, text=st.text("ab c", max_size=25))
    @settings(deadline=None, max_examples=300)
    def test_merges_like_the_definition(self, words, text):
        """Repeatedly merge the best pair; of equal ones, the leftmost."""
        tokenizer = plait.Tokenizer(spm_metadata(words, add_space_prefix=False))
        score = {f"<0x{byte:02X}>": 0.0 for byte in range(256)} | words
        symbols = list(text.replace(" ", SPACE))
        while True:
            pairs = [
                (-score[left + right], at)
                for at, (left, right) in enumerate(itertools.pairwise(symbols))
                if left + right in score
            ]
            if not pairs:
                break
            at = min(pairs)[1]
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        want = []
        for symbol in symbols:
            known = tokenizer.token_id(symbol)
            want += [known] if known is not None else [3 + byte for byte in symbol.encode()]
        assert tokenizer.encode(text, add_special=False).tolist() == want

    def test_special_tokens_and_prefix(self):
        tokenizer = plait.Tokenizer(spm_metadata({SPACE + "a": -1.0, "a": -2.0, SPACE: -3.0}))
        assert (tokenizer.bos, tokenizer.eos, tokenizer.unk) == (1, 2, 0)
        assert tokenizer.encode("a").tolist() == [1, 259]
        assert tokenizer.encode("a</s>a").tolist() == [1, 259, 2, 259]
        assert tokenizer.encode("a</s>a", parse_special=False)[-1] == 260
        assert tokenizer.encode("").tolist() == [1]
        assert tokenizer.decode([259, 259]) == "a a"
        assert tokenizer.decode([1, 260], skip_special=False) == "<s>a"
        assert tokenizer.token_bytes(3 + 0xE2) == b"\xe2"

    def test_a_character_without_byte_tokens(self):
        words = metadata("llama", ["<s>", "a"], bos_token_id=0, add_space_prefix=False)
        words["tokenizer.ggml.unknown_token_id"] = 0xFFFFFFFF  # "none"
        tokenizer = plait.Tokenizer(words)
        assert tokenizer.encode("aa", add_special=False).tolist() == [1, 1]
        assert tokenizer.encode("ab", add_special=False).tolist() == [
            1,
            0,
        ]  # the default of an absent id
        plain = plait.Tokenizer(metadata("llama", ["a"], [NORMAL], add_space_prefix=False))
        assert plain.encode("ab", add_special=False).tolist() == [0, 0]


class TestBpe:
    @pytest.mark.parametrize(
        ("pre", "text", "words"),
        [
            ("gpt-2", "Hello it's 12345\n\n  x", ["Hello", " it", "'s", " 12345", "\n\n ", " x"]),
            ("llama-bpe", "IT'S 12345!\n\n x", ["IT", "'S", " ", "123", "45", "!\n\n", " x"]),
            ("qwen2", "a12", ["a", "1", "2"]),
            ("starcoder", "a 12", ["a", " ", "1", "2"]),
            ("falcon", "a(1234)", ["a", "(", "123", "4", ")"]),
            ("deepseek-coder", "a\nb \u4f60\u597d1", ["a", "\n", "b", " ", "\u4f60\u597d", "1"]),
            ("deepseek-v3", "abc\u4f60123456", ["abc", "\u4f60", "123", "456"]),
            (
                "gpt-4o",
                "camelCaseHTTP's \u00c9t\u00e9",
                ["camel", "Case", "HTTP's", " \u00c9t\u00e9"],
            ),
            ("tekken", "aB\u0416\u0436\u0416", ["a", "B\u0416\u0436\u0416"]),
            ("kimi-k2", "ab\u6f22\u5b57cd", ["ab", "\u6f22\u5b57", "cd"]),
            ("afmoe", "x1234567", ["x", "1", "234", "567"]),
            ("superbpe", "12345 a b", ["12", "345", " a b"]),
            ("bloom", "a, b", ["a", ",", " b"]),
            ("spark2_5", "ab\n\n12.", ["ab", "\n", "\n", "1", "2", "."]),
            ("qwen2", "Ankara'da 12", ["Ankara", "'d", "a", " ", "1", "2"]),
            ("ufakzeka", "Ankara'da 12", ["Ankara", "'da", " ", "1", "2"]),
            ("hy_v4", "abc1234", ["abc", "123", "4"]),
            (
                "gpt-4o",
                "\u0939\u093f\u0928\u094d\u0926\u0940",
                ["\u0939", "\u093f\u0928", "\u094d\u0926", "\u0940"],
            ),
            (
                "llama4",
                "\u041f\u0440\u0438\u0432\u0435\u0442\u041c\u0438\u0440",
                ["\u041f\u0440\u0438\u0432\u0435\u0442\u041c\u0438\u0440"],
            ),
            (
                "granite-embed-multi-97m",
                "\u0939\u093f\u0928\u094d\u0926\u0940",
                ["\u0939\u093f\u0928\u094d\u0926\u0940"],
            ),
            ("kimi-k2", "camelCase's", ["camelCase's"]),
            ("youtu", "camelCase 12", ["camelCase", " ", "1", "2"]),
            ("tiny_aya", "ab1234  5", ["ab", "1", "234", " ", " ", "5"]),
            (
                "afmoe",
                "\u0e40\u0e21\u0e37\u0e2d\u0e07  123456",
                ["\u0e40", "\u0e21\u0e37\u0e2d\u0e07", " ", " ", "123", "456"],
            ),
            ("superbpe", "\xbd1234 \xbd123", ["\xbd1", "234", " ", "\xbd", "123"]),
            ("deepseek-coder", "|\u1680", ["|\u1680"]),
            ("deepseek-llm", " \u2028", [" \u2028"]),
            ("default", "a(12345)", ["a", "(", "123", "45", ")"]),
        ],
    )
    def test_words(self, pre, text, words):
        """Texts are split as by llama.cpp: see decision record 0050."""
        keys = metadata("gpt2", byte_alphabet(), merges=[], pre=pre)
        library = bpe._build(vocabulary.read(keys), 256)
        pieces = bpe.grouped(text, PRE_TOKENIZERS[pre].digits)
        cut = [
            word for piece in pieces for word, _ in library.pre_tokenizer.pre_tokenize_str(piece)
        ]
        index = {character: byte for byte, character in enumerate(byte_alphabet())}
        assert [bytes(index[c] for c in word).decode() for word in cut] == words

    @pytest.mark.parametrize("model", ["gpt2", "whitespace"])
    @pytest.mark.parametrize(("lowercase", "ids"), [(False, [2, 0, 1]), (True, [2, 2])])
    def test_white_space_only_separates_words(self, model, lowercase, ids):
        tokens = ["\u00c9", "b", "\u00e9b", "\u00e9"]
        keys = metadata(model, tokens, merges=["\u00e9 b"], pre="whitespace")
        tokenizer = plait.Tokenizer(keys | {"tokenizer.ggml.normalizer.lowercase": lowercase})
        assert tokenizer.encode(" \u00e9b\n\t\u00c9b ", add_special=False).tolist() == ids

    def test_information_separators_are_not_white_space(self):
        keys = metadata("whitespace", ["a", "b", "\x1c"], merges=[])
        assert plait.Tokenizer(keys).encode("a\x1cb\u3000a").tolist() == [0, 2, 1, 0]

    def test_merges_go_by_rank_not_by_place(self):
        tokens = [*byte_alphabet(), "ab", "bc", "abc"]
        early = plait.Tokenizer(
            metadata("gpt2", tokens, merges=["b c", "a b", "a bc"], pre="gpt-2")
        )
        late = plait.Tokenizer(metadata("gpt2", tokens, merges=["a b", "b c", "a bc"], pre="gpt-2"))
        assert early.encode("abc").tolist() == [258]
        assert late.encode("abc").tolist() == [256, byte_alphabet().index("c")]

    def test_merges_of_unknown_tokens_are_skipped(self):
        tokenizer = byte_bpe(merges=["a b", "x nonsense"])
        assert len(tokenizer.encode("ab")) == 2

    def test_a_missing_byte_is_dropped_and_keeps_its_neighbours_apart(self):
        tokenizer = plait.Tokenizer(metadata("gpt2", ["a", "b", "ab"], merges=["a b"], pre="gpt-2"))
        assert tokenizer.encode("ab").tolist() == [2]
        assert tokenizer.encode("a\x00b").tolist() == [0, 1]

    def test_a_panic_of_the_library_is_a_model_error(self, monkeypatch):
        class PanicException(BaseException):
            pass

        def panic(*_: object) -> None:
            raise PanicException("index out of bounds")

        monkeypatch.setattr(bpe, "_build", panic)
        with pytest.raises(plait.ModelError, match="index out of bounds"):
            byte_bpe().encode("a")

    def test_the_library_is_imported_when_first_needed(self):
        code = "import sys, plait; sys.exit('tokenizers' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestUnigram:
    @given(
        words=st.dictionaries(
            st.text("ab", min_size=1, max_size=3), st.integers(-9, -1), min_size=1
        ),
        text=st.text("abc", min_size=1, max_size=8),
    )
    @settings(deadline=None, max_examples=300)
    def test_finds_the_likeliest_segmentation(self, words, text):
        """Score all segmentations; characters that are not tokens are unknown, and adjacent unknowns are one."""
        tokenizer = plait.Tokenizer(unigram_metadata(words))

        def all_ways(rest: str) -> list[tuple[int, list[int]]]:
            if not rest:
                return [(0, [])]
            heads = [(words[w], 3 + i, len(w)) for i, w in enumerate(words) if rest.startswith(w)]
            if rest[0] not in words:
                heads.append((min(words.values()) - 10, tokenizer.unk, 1))
            return [
                (score + more, [token, *after])
                for score, token, n in heads
                for more, after in all_ways(rest[n:])
            ]

        ways = all_ways(text)
        best = max(score for score, _ in ways)
        wanted = [fuse(ids, tokenizer.unk) for score, ids in ways if score == best]
        assert tokenizer.encode(text, add_special=False).tolist() in wanted
        assert tokenizer.encode(text)[-1] == tokenizer.eos == 1

    @pytest.mark.parametrize(
        ("prefix", "merge", "text", "normal"),
        [
            (True, True, "  a  b ", [SPACE, "a", SPACE, "b"]),
            (False, True, "a", [SPACE, "a"]),
            (True, False, "a b ", [SPACE, "a", SPACE, "b", SPACE]),
            (True, False, " a", [SPACE, SPACE, "a"]),
            (False, False, " a", [SPACE, "a"]),
            (True, True, "  ", []),
        ],
    )
    def test_spaces(self, prefix, merge, text, normal):
        words = unigram_metadata(
            {SPACE: -1.0, "a": -1.0, "b": -1.0},
            add_space_prefix=prefix,
            remove_extra_whitespaces=merge,
        )
        tokenizer = plait.Tokenizer(words)
        ids = tokenizer.encode(text, add_special=False)
        assert ids.tolist() == [tokenizer.token_id(piece) for piece in normal]

    def test_compiled_replacements(self):
        tokenizer = plait.Tokenizer(
            unigram_metadata(
                {"b": -1.0, "c": -1.0, "\u00e9": -2.0}, precompiled_charsmap=charsmap()
            )
        )
        ids = tokenizer.encode("A\u00e9A", add_special=False).tolist()
        assert [tokenizer.token_bytes(i).decode() for i in ids] == ["b", "c", "\u00e9", "b", "c"]

    @pytest.mark.parametrize("cut", [0, 3, 4, 4 + 4 * 0x400, -1])
    def test_damaged_replacements(self, cut):
        words = unigram_metadata({"a": -1.0}, precompiled_charsmap=charsmap()[:cut])
        with pytest.raises(plait.ModelError, match="precompiled_charsmap"):
            plait.Tokenizer(words).encode("A")

    def test_invalid_replacements_are_refused(self):
        damaged = charsmap()
        damaged[4:8] = 0xFF
        words = unigram_metadata({"a": -1.0}, precompiled_charsmap=damaged)
        with pytest.raises(plait.ModelError, match="precompiled_charsmap"):
            plait.Tokenizer(words).encode("A")


def fuse(ids: list[int], unknown: int) -> list[int]:
    """Return `ids` with each run of `unknown` reduced to one."""
    return [
        i for i, before in zip(ids, [-1, *ids], strict=False) if i != unknown or before != unknown
    ]


def charsmap() -> np.ndarray:
    """A double array (Darts-clone) with one entry, "A" -> "bc": its node has a label, a value and a base."""
    units = np.zeros(0x400, "<u4")
    units[0] = 0x100 << 10
    units[0x100 ^ 0x41] = 0x300 << 10 | 0x100 | 0x41
    units[0x100 ^ 0x41 ^ 0x300] = 0x80000000
    data = units.nbytes.to_bytes(4, "little") + units.tobytes() + b"bc\0"
    return np.frombuffer(data, np.uint8).copy()


class TestWordPiece:
    TOKENS = (
        *("[PAD]", "[UNK]", "[CLS]", "[SEP]", f"{SPACE}un", "aff", "able"),
        *(f"{SPACE}!", f"{SPACE}\u6f22", f"{SPACE}cafe"),
    )

    def make(self, **more: Any) -> plait.Tokenizer:
        ids = {"bos_token_id": 2, "seperator_token_id": 3, "unknown_token_id": 1}
        types = [CONTROL] * 4 + [NORMAL] * 6
        return plait.Tokenizer(metadata("bert", list(self.TOKENS), types, **ids, **more))

    @pytest.mark.parametrize(
        ("text", "ids"),
        [
            ("unaffable", [4, 5, 6]),
            ("UNAFFABLE!", [4, 5, 6, 7]),
            ("caf\u00e9\u6f22un", [9, 8, 4]),
            ("unx un", [1, 4]),  # a word that tokens cannot cover becomes one unknown token
            ("\x00un\u200b  !\ufffd", [4, 7]),
            ("", []),
            (" \u3000\n", []),
        ],
    )
    def test_words(self, text, ids):
        tokenizer = self.make()
        assert tokenizer.encode(text, add_special=False).tolist() == ids
        assert tokenizer.encode(text).tolist() == [2, *ids, 3]

    def test_case_and_accents_may_count(self):
        assert self.make(**{"normalizer.lowercase": False}).encode("UN", False).tolist() == [1]
        strict = self.make(**{"normalizer.strip_accents": False})
        assert strict.encode("caf\u00e9", False).tolist() == [1]


class TestRwkv:
    @given(words=st.sets(st.binary(min_size=2, max_size=4), max_size=30), text=st.text(max_size=20))
    @settings(deadline=None, max_examples=200)
    def test_takes_the_longest_token(self, words, text):
        data = text.encode("utf-8", "ignore")
        tokens = [*(bytes([byte]) for byte in range(256)), *sorted(words)]
        tokens += [
            data[at : at + 3] for at in range(0, len(data), 2) if data[at : at + 3] not in tokens
        ]
        tokens = list(dict.fromkeys(tokens))
        tokenizer = plait.Tokenizer(metadata("rwkv", [repr(token)[2:-1] for token in tokens]))
        want, rest = [], data
        while rest:
            longest = max((token for token in tokens if rest.startswith(token)), key=len)
            want.append(tokens.index(longest))
            rest = rest[len(longest) :]
        ids = tokenizer.encode(data.decode())
        assert ids.tolist() == want
        assert tokenizer.decode(ids) == data.decode()
        assert [tokenizer.token_bytes(i) for i in range(len(tokens))] == tokens

    def test_a_byte_without_token(self):
        with pytest.raises(plait.ModelError, match="0x62"):
            plait.Tokenizer(metadata("rwkv", ["a"])).encode("ab")


class TestPlamo:
    """tests/python/oracle/test_llama_cpp_tokens.py compares ids with llama.cpp."""

    @given(
        words=st.dictionaries(
            st.text("ab\u3042 ", min_size=1, max_size=4), st.integers(-12_000, 0), max_size=15
        ),
        text=st.text("ab\u3042 ", max_size=8),
    )
    @settings(deadline=None, max_examples=200)
    def test_takes_the_segmentation_with_the_highest_sum(self, words, text):
        """A character costs 1,000 as bytes. Of equal sums, the one whose first token is longest counts."""

        def best(rest: str) -> tuple[int, list[int]]:
            if not rest:
                return 0, []
            found = []
            for length in range(len(rest), 0, -1):
                if rest[:length] in words and words[rest[:length]] > -2_000:
                    score, ids = best(rest[length:])
                    token = 260 + list(words).index(rest[:length])
                    found.append((score + words[rest[:length]], [token, *ids]))
            score, ids = best(rest[1:])
            found.append((score - 1_000, [4 + byte for byte in rest[0].encode()] + ids))
            return max(found, key=lambda it: it[0])

        words = {word: score for word, score in words.items() if score != -1_000}
        tokenizer = plait.Tokenizer(plamo_metadata(words))
        ids = tokenizer.encode(text)
        assert ids.tolist() == best(text)[1]
        assert tokenizer.decode(ids) == text

    def test_special_tokens_are_those_of_llama_cpp(self):
        words = plamo_metadata({"a": -1.0, "</s>": -2.0, SPACE: -3.0}, add_bos_token=True)
        tokenizer = plait.Tokenizer(words)
        assert tokenizer.kind == "plamo2"
        assert not tokenizer.add_bos
        assert tokenizer.encode("\ufeffa</s>").tolist() == [260, 261]
        assert tokenizer.encode("<|plamo:bos|>a").tolist() == [1, 260]
        assert tokenizer.eog == {2}
        assert tokenizer.token_bytes(262) == SPACE.encode()
        assert (tokenizer.bos, tokenizer.eos, tokenizer.unk, tokenizer.pad) == (1, 2, 0, 3)

    def test_every_byte_needs_a_token(self):
        words = plamo_metadata({"a": -1.0})
        words["tokenizer.ggml.token_type"][4 + 0x41] = NORMAL
        with pytest.raises(plait.ModelError, match="<0x41>"):
            plait.Tokenizer(words).encode("a")


class TestSpecialTokens:
    def test_roles_from_the_file_and_from_texts(self):
        tokenizer = byte_bpe(
            ("<|endoftext|>", "<|im_end|>", "<|fim_prefix|>"), eos_token_id=256, bos_token_id=256
        )
        assert (tokenizer.bos, tokenizer.eos, tokenizer.eot) == (256, 256, 257)
        assert tokenizer.eog == {256, 257}
        assert tokenizer.is_eog(257)
        assert not tokenizer.is_eog(65)
        assert tokenizer.special_ids["fim_pre"] == 258
        assert (tokenizer.pad, tokenizer.unk, tokenizer.mask, tokenizer.eom) == (None,) * 4

    def test_tokens_that_end_a_generation_are_control_tokens(self):
        tokens = [*byte_alphabet(), "<|im_end|>"]
        tokenizer = plait.Tokenizer(metadata("gpt2", tokens, [NORMAL] * 257, merges=[]))
        assert tokenizer.encode("<|im_end|>", parse_special=True).tolist() == [256]
        assert tokenizer.decode([256]) == ""
        assert tokenizer.token_bytes(256) == b"<|im_end|>"

    @pytest.mark.parametrize(
        ("present", "exempt"),
        [
            (("<|return|>", "<|call|>"), "<|end|>"),  # gpt-oss
            (("<|flush|>", "<|calls|>"), "<|end|>"),  # solar
            (("<|tool_response>",), "</s>"),  # Gemma 4
        ],
    )
    def test_exceptions(self, present, exempt):
        assert byte_bpe((exempt,)).is_eog(256)
        assert not byte_bpe((exempt, *present)).is_eog(256)

    def test_the_longest_token_is_cut_out_first(self):
        tokenizer = byte_bpe(("<a>", "<a><b>", "b><a"))
        assert tokenizer.encode("<a><b><a>").tolist() == [257, 256]
        assert tokenizer.encode("<a><b>", parse_special=False).max() < 256

    def test_user_defined_tokens_are_always_tokens(self):
        tokens = [*byte_alphabet(), "<x>"]
        tokenizer = plait.Tokenizer(metadata("gpt2", tokens, [NORMAL] * 256 + [USER], merges=[]))
        assert tokenizer.encode("<x>", parse_special=False).tolist() == [256]
        assert tokenizer.decode([256]) == "<x>"

    def test_control_tokens_that_decode_shows_are_not_parsed_in_untrusted_text(self):
        texts = (
            "<|start|>",
            "<|channel|>",
            "<|message|>",
            "<|constrain|>",
            "<|end|>",
            "<|return|>",
            "<|call|>",
        )
        tokenizer = byte_bpe(texts)
        text = "<|start|>user<|message|>x<|end|>"
        assert tokenizer.encode(text, parse_special=False).max() < 256
        ids = tokenizer.encode(text).tolist()
        assert ids.count(256) == ids.count(258) == ids.count(260) == 1
        assert tokenizer.decode(ids) == text
        assert tokenizer.special_texts()[1] == set(texts[:5])

    def test_tokens_that_strip_spaces(self):
        phi = byte_bpe(("<|user|>", "<|endoftext|>")).encode
        words = metadata(
            "gpt2",
            [*byte_alphabet(), "<|user|>", "<|endoftext|>"],
            [NORMAL] * 256 + [CONTROL] * 2,
            merges=[],
        )
        swallowing = plait.Tokenizer({**words, "general.name": "Phi-3 mini"}).encode
        assert swallowing("a <|user|>\n b").tolist() == phi("a <|user|>b").tolist()
        assert swallowing("<|endoftext|> b").tolist() == phi("<|endoftext|> b").tolist()
        mask = metadata("gpt2", [*byte_alphabet(), "<mask>"], [NORMAL] * 256 + [CONTROL], merges=[])
        jina = plait.Tokenizer({**mask, "tokenizer.ggml.pre": "jina-v2-de"}).encode
        assert jina("a <mask> b").tolist() == jina("a<mask> b").tolist()

    def test_bos_and_eos_are_added_as_the_file_specifies(self):
        both = byte_bpe(
            ("<s>", "</s>"),
            bos_token_id=256,
            eos_token_id=257,
            add_bos_token=True,
            add_eos_token=True,
        )
        assert (both.add_bos, both.add_eos) == (True, True)
        assert both.encode("a").tolist() == [256, 0x61, 257]
        assert both.encode("a", add_special=False).tolist() == [0x61]
        assert byte_bpe(("<s>",), pre="llama3", bos_token_id=256).encode("").tolist() == [256]
        assert byte_bpe(pre="llama3").encode("").tolist() == []  # nothing to add
        gemma = metadata(
            "gemma4", ["a", "<bos>"], [NORMAL, CONTROL], merges=[], add_bos_token=False
        )
        assert plait.Tokenizer(gemma).encode("a").tolist() == [0]
        gemma["tokenizer.ggml.bos_token_id"] = 1
        assert plait.Tokenizer(gemma).encode("a").tolist() == [1, 0]


class TestBadVocabularies:
    """Rules R5 and R8: an error that names the key, never an abort."""

    GOOD = spm_metadata({"a": -1.0})

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("model", 3),
            ("model", None),
            ("tokens", None),
            ("tokens", []),
            ("tokens", ["a", 3]),
            ("tokens", "abc"),
            ("tokens", np.arange(3)),
            ("scores", np.zeros(259, np.float32)),
            ("scores", np.zeros(260, np.uint8)),
            ("scores", np.zeros(260, np.float64)),
            ("scores", np.full(260, np.nan, np.float32)),
            ("scores", [0.0] * 260),
            ("token_type", np.ones(261, np.int32)),
            ("token_type", np.ones(260, np.uint8)),
            ("token_type", np.full(260, 7, np.int32)),
            ("token_type", np.full(260, -1, np.int32)),
            ("token_type", np.full(260, BYTE, np.int32)),
            ("bos_token_id", 260),
            ("eos_token_id", -2),
            ("padding_token_id", "0"),
            ("unknown_token_id", True),
            ("eot_token_id", 1.0),
            ("add_bos_token", 1),
            ("add_space_prefix", "yes"),
            ("precompiled_charsmap", np.zeros(8, np.int32)),
        ],
    )
    def test_error_names_the_key(self, key, value):
        full = f"tokenizer.ggml.{key}"
        broken = {**self.GOOD, full: value}
        if value is None:
            del broken[full]
        named = "tokenizer.ggml.tokens" if key == "token_type" and value[0] == BYTE else full
        with pytest.raises(plait.ModelError, match=named.replace(".", r"\.")):
            plait.Tokenizer(broken)

    @pytest.mark.parametrize(
        "text", ["<0x-1>", "<0xff>", "<0xFFF>", "0xFF", "<0x>", "<0xF\n>", "\u0661"]
    )
    def test_byte_tokens_are_of_one_form(self, text):
        with pytest.raises(plait.ModelError, match=r"tokenizer\.ggml\.tokens\[1\]"):
            plait.Tokenizer(metadata("llama", ["a", text], [NORMAL, BYTE]))

    @pytest.mark.parametrize("merge", ["", "a", "ab", " a", "a "])
    def test_merges_are_pairs(self, merge):
        with pytest.raises(plait.ModelError, match=r"tokenizer\.ggml\.merges\[0\]"):
            byte_bpe(merges=[merge])

    def test_merges_are_needed(self):
        with pytest.raises(plait.ModelError, match=r"tokenizer\.ggml\.merges"):
            plait.Tokenizer(metadata("gpt2", ["a"]))

    def test_a_bos_to_add_must_exist(self):
        with pytest.raises(plait.ModelError, match="add_bos_token"):
            byte_bpe(add_bos_token=True)

    @pytest.mark.parametrize("model", ["no_vocab", "none", "hybriddna", ""])
    def test_unknown_models(self, model):
        with pytest.raises(plait.UnsupportedError, match=r"tokenizer\.ggml\.model"):
            plait.Tokenizer(metadata(model, ["a"]))

    def test_unknown_pre_tokenizers_list_the_known(self):
        with pytest.raises(
            plait.UnsupportedError, match=r"'new-one'; known: .*gpt-2.*llama-bpe.*qwen2"
        ):
            byte_bpe(pre="new-one")

    def test_unigram_needs_an_unknown_token(self):
        words = metadata("t5", ["a"], scores=np.zeros(1, np.float32), eos_token_id=0)
        with pytest.raises(plait.ModelError, match="unknown_token_id"):
            plait.Tokenizer(words).encode("a")

    def test_equal_and_empty_tokens(self):
        tokenizer = plait.Tokenizer(metadata("llama", ["", "b", "b", ""], add_space_prefix=False))
        assert tokenizer.token_id("b") == 1
        assert tokenizer.decode([1, 2]) == "bb"
        assert tokenizer.n_vocab == 4

    def test_rows_of_the_model(self):
        padded = plait.Tokenizer(self.GOOD, n_vocab=300)
        assert (padded.n_vocab, len(padded)) == (300, 300)
        assert padded.decode([259, 299]) == "a"
        assert padded.token_bytes(299) == b""
        with pytest.raises(plait.ModelError, match="259"):
            plait.Tokenizer(self.GOOD, n_vocab=259)


class TestArguments:
    @pytest.mark.parametrize("text", [b"a", None, 3, ["a"]])
    def test_encode_takes_text(self, text):
        with pytest.raises(TypeError, match="str"):
            byte_bpe().encode(text)

    def test_lone_surrogates_are_no_text(self):
        with pytest.raises(ValueError, match=r"text\[2\].*U\+D800"):
            byte_bpe().encode("ab\ud800")

    def test_nul_is_text(self, load):
        for name in ("gpt-2", "llama-spm"):
            tokenizer = load(name)
            assert tokenizer.decode(tokenizer.encode("a\0b", add_special=False)) == "a\0b"

    @pytest.mark.parametrize(
        "ids", [[-1], [0, 256], np.array([2**40]), [2**70], np.array([256], np.uint64)]
    )
    def test_ids_outside_the_vocabulary(self, ids):
        with pytest.raises(IndexError, match=str(ids[-1])):
            byte_bpe().decode(ids)

    @pytest.mark.parametrize("ids", [[1.0], ["a"], "a", b"a", [True], 3, [None], {1}])
    def test_ids_are_integers(self, ids):
        with pytest.raises(TypeError):
            byte_bpe().decode(ids)

    def test_ids_are_one_row(self):
        with pytest.raises(ValueError, match=r"\(1, 2\)"):
            byte_bpe().decode(np.array([[1, 2]]))

    @pytest.mark.parametrize(
        "ids", [[0x61], (0x61,), range(0x61, 0x62), np.array([0x61], np.uint8)]
    )
    def test_ids_may_be_any_sequence(self, ids):
        assert byte_bpe().decode(ids) == "a"
        assert byte_bpe().decode([]) == ""

    @pytest.mark.parametrize(
        ("token", "error"),
        [(256, IndexError), (-1, IndexError), (1.0, TypeError), (True, TypeError)],
    )
    def test_token_bytes_of_no_token(self, token, error):
        with pytest.raises(error):
            byte_bpe().token_bytes(token)

    def test_from_gguf_needs_a_file(self, tmp_path):
        with pytest.raises((OSError, plait.ModelError)):
            plait.Tokenizer.from_gguf(tmp_path / "none.gguf")

    def test_repr(self):
        assert (
            repr(byte_bpe())
            == "<plait.Tokenizer bpe gpt-2: 256 tokens, bos=None, eos=None, eot=None>"
        )


class TestScale:
    """Quadratic time would exceed the limit of a few seconds."""

    N = 300_000

    @pytest.mark.parametrize("name", ["gpt-2", "llama-spm", "bert-bge"])
    @pytest.mark.parametrize("text", ["a", " ", "\n", "1", "' "])
    def test_one_character_over_and_over(self, load, name, text):
        text = text * (self.N // len(text))
        tokenizer = load(name)
        ids = tokenizer.encode(text, add_special=False)
        if name != "bert-bge":
            assert tokenizer.decode(ids, clean_up=False) == text

    @pytest.mark.parametrize("pre", ["afmoe", "gpt-4o", "kimi-k2", "superbpe", "tiny_aya"])
    @pytest.mark.parametrize("text", ["a", "A", "\u0436", "1", "\u0967", " ", "a1", "\u093f"])
    def test_pre_tokenizers_over_and_over(self, pre, text):
        text = text * (60_000 // len(text))
        tokenizer = byte_bpe(pre=pre)
        ids = tokenizer.encode(text, add_special=False)
        assert tokenizer.decode(ids, clean_up=False) == text

    @pytest.mark.parametrize("make", ["t5", "rwkv", "plamo", "crossing"])
    def test_small_vocabularies(self, make):
        if make == "t5":
            tokenizer = plait.Tokenizer(unigram_metadata({"a" * n: -2.0 - n for n in range(1, 9)}))
        elif make == "rwkv":
            tokenizer = plait.Tokenizer(metadata("rwkv", ["a" * n for n in range(1, 17)]))
        elif make == "plamo":
            tokenizer = plait.Tokenizer(plamo_metadata({"a" * n: -2.0 - n for n in range(1, 9)}))
        else:  # a token with a space inside: the text is one word
            tokenizer = plait.Tokenizer(
                spm_metadata(
                    {"a": -9.0, "aa": -1.0, "aaaa": -2.0, f"a{SPACE}a": -3.0},
                    add_space_prefix=False,
                )
            )
        ids = tokenizer.encode("a" * self.N, add_special=False)
        assert b"".join(map(tokenizer.token_bytes, ids)) == b"a" * self.N

    def test_threads_share_a_tokenizer(self, load, data_dir):
        text = (data_dir / "README.md").read_text("utf-8")
        for name in ("gpt-2", "llama-spm"):
            want = load(name).encode(text).tolist()
            fresh = plait.Tokenizer.from_gguf(data_dir / "vocab" / f"ggml-vocab-{name}.gguf")
            with ThreadPoolExecutor(8) as pool:
                for ids in pool.map(fresh.encode, [text] * 16):
                    assert ids.tolist() == want


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


@pytest.mark.parametrize(
    ("kind", "tokens", "types", "text"),
    [
        ("rwkv", ["<s>", *(f"\\x{byte:02x}" for byte in range(256))], {0: CONTROL}, "a<s>b"),
        ("plamo2", ["<unk>", "<s>", *BYTES, "a", "<"], {0: UNKNOWN, 1: CONTROL}, "a<s>a"),
        (
            "llama",
            ["<unk>", "</s>", *BYTES, SPACE, "</", "s>", "<", "/", "s", ">"],
            {0: UNKNOWN, 1: CONTROL},
            "</s>",
        ),
        (
            "gpt2",
            [*byte_alphabet(), "<|end|>", "/nothink"],
            {256: CONTROL, 257: CONTROL},
            "hi\n/nothink",
        ),
    ],
)
def test_text_becomes_no_control_token(kind, tokens, types, text):
    """Not even where the tokens of text and the control tokens are in one table."""
    numbers = [BYTE if token in BYTES else NORMAL for token in tokens]
    for token, number in types.items():
        numbers[token] = number
    tokenizer = plait.Tokenizer({
        "tokenizer.ggml.model": kind, "tokenizer.ggml.pre": "glm4", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(numbers, np.int32),
        "tokenizer.ggml.scores": np.arange(0.0, -len(tokens), -1.0, np.float32) / 1000,
        "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.unknown_token_id": 0,
    })  # fmt: skip
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    assert not tokenizer.control_ids.intersection(ids.tolist())
    assert tokenizer.decode(ids).strip() == text
    special = tokenizer.encode(text, add_special=False)
    assert tokenizer.control_ids.intersection(special.tolist())
