"""Text to token ids and back, from the vocabulary that a GGUF file carries.

tokenizer.py    Tokenizer, the class users meet
stream.py       TokenStream: ids in, whole characters out, one token at a time
vocabulary.py   the tokenizer.ggml.* keys, read and checked
special.py      which tokens are special, which end a generation, and cutting text at them
bpe.py          byte-pair encoding ("gpt2", "gemma4"); patterns.py holds its pre-tokenizers
spm.py          SentencePiece merges by score ("llama")
unigram.py      SentencePiece unigram ("t5"); charsmap.py is its text normaliser
wordpiece.py    BERT's longest match ("bert")
trie.py         longest match over bytes ("rwkv")
"""

from plait.tokenizer.stream import TokenStream
from plait.tokenizer.tokenizer import Tokenizer

__all__ = ["TokenStream", "Tokenizer"]
