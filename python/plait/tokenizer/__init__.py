"""Conversion between text and token ids, with the vocabulary of a GGUF file.

tokenizer.py      Tokenizer, the public class
chat_template.py  ChatTemplate: messages to a prompt
stream.py         TokenStream: incremental decoding
vocabulary.py     reads and validates the tokenizer.ggml.* keys
special.py        special and end-of-generation tokens; splits text at special tokens
bpe.py            byte-pair encoding ("gpt2", "gemma4"); its pre-tokenizers are in patterns.py
spm.py            SentencePiece merges by score ("llama")
unigram.py        SentencePiece unigram ("t5"); its text normaliser is in charsmap.py
wordpiece.py      BERT's longest match ("bert")
trie.py           longest match over bytes ("rwkv")
plamo.py          highest sum of scores ("plamo2")
"""

from plait.tokenizer.stream import TokenStream
from plait.tokenizer.tokenizer import Tokenizer

__all__ = ["TokenStream", "Tokenizer"]
