"""Stop strings, found wherever they fall relative to token boundaries."""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import SupportsIndex

Stop = str | SupportsIndex | Iterable[str | SupportsIndex]


class _Node:
    """A prefix of one or more strings: those in [first, end) of the sorted list, up to `depth` characters."""

    __slots__ = ("depth", "end", "fail", "first", "match", "next")

    def __init__(self, first: int, end: int, depth: int) -> None:
        self.first = first
        self.end = end
        self.depth = depth
        self.fail: _Node = self  # the longest proper suffix that is also a prefix of a string
        self.match = 0  # length of the longest string that is a suffix of this prefix
        self.next: dict[str, _Node | None] = {}


class StopAutomaton:
    """Aho-Corasick automaton over a set of strings. Nodes are created when a text first reaches them.

    Aho & Corasick 1975, "Efficient string matching". Thus the time to scan a text does not depend on the number of
    strings, apart from a binary search per node.

    Args:
        strings: The strings to find.

    Raises:
        ValueError: A string is empty.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        self._strings = sorted(set(strings))
        if self._strings and not self._strings[0]:
            raise ValueError("stop: the empty string would end every generation")
        self.root = _Node(0, len(self._strings), 0)

    def __bool__(self) -> bool:
        return bool(self._strings)

    def step(self, node: _Node, character: str) -> _Node:
        """Return the node of the longest suffix of `node` + `character` that is a prefix of a string."""
        created: list[
            tuple[_Node, _Node]
        ] = []  # pairs of a parent and its new child, longest first
        while True:
            if character in node.next:
                child = node.next[character]
                if child is not None:
                    break
            else:
                child = self._child(node, character)
                if child is None:
                    node.next[character] = None
                else:
                    created.append((node, child))
            if node is self.root:
                child = node
                break
            node = node.fail
        # Each new node fails to the next shorter suffix that has a node.
        for parent, longer in reversed(created):
            longer.fail = child
            longer.match = longer.match or child.match
            parent.next[character] = child = longer
        return child

    def _child(self, node: _Node, character: str) -> _Node | None:
        """Create the node of `node` + `character`, without its `fail`. None if that is no prefix of a string."""
        depth = node.depth
        # The string that ends here, if there is one, comes first and has no character at this depth.
        first = node.first + (node.first < node.end and len(self._strings[node.first]) == depth)
        first = bisect_left(self._strings, character, first, node.end, key=lambda s: s[depth])
        end = bisect_right(self._strings, character, first, node.end, key=lambda s: s[depth])
        if first == end:
            return None
        child = _Node(first, end, depth + 1)
        child.match = child.depth if len(self._strings[first]) == child.depth else 0
        return child


class StopStrings:
    """Scans the text of one generation and withholds text that could still become a stop string.

    Args:
        strings: The stop strings, or an automaton that several generations share.

    Raises:
        ValueError: A string is empty.
    """

    def __init__(self, strings: Iterable[str] | StopAutomaton) -> None:
        self._automaton = strings if isinstance(strings, StopAutomaton) else StopAutomaton(strings)
        self._node = self._automaton.root
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Add text.

        Args:
            text: The next part of the generated text.

        Returns:
            The text that can be released, and whether a stop string was completed. If so, the text ends where the stop
            string begins.
        """
        if not self._automaton:
            return text, False
        joined, node = self._held + text, self._node
        for end, character in enumerate(text, len(self._held) + 1):
            node = self._automaton.step(node, character)
            if node.match:
                self._node, self._held = self._automaton.root, ""
                return joined[: end - node.match], True
        settled = len(joined) - node.depth
        self._node, self._held = node, joined[settled:]
        return joined[:settled], False

    def flush(self) -> str:
        """Return the withheld text, since no more text follows."""
        text, self._held = self._held, ""
        self._node = self._automaton.root
        return text


class StopConditions:
    """The parsed argument `stop`: an automaton of its strings, and its token ids.

    Args:
        stop: A string, a token id, or an iterable of both.

    Raises:
        ValueError: A string is empty.
        TypeError: An element is neither a string nor an integer.
    """

    def __init__(self, stop: Stop) -> None:
        if isinstance(stop, bytes | bytearray):
            raise TypeError("stop is bytes; expected a str, a token id or a list of those")
        if isinstance(stop, str) or not isinstance(stop, Iterable):
            stop = (stop,)
        items = list(stop)
        for item in items:
            if not isinstance(item, str) and not hasattr(item, "__index__"):
                raise TypeError(f"stop has {item!r:.80}; expected strings and token ids")
        self.strings = StopAutomaton(item for item in items if isinstance(item, str))
        self.ids = frozenset(operator.index(item) for item in items if not isinstance(item, str))

    @classmethod
    def of(cls, stop: Stop | StopConditions) -> StopConditions:
        """Return `stop` if it is already parsed, else parse it."""
        return stop if isinstance(stop, StopConditions) else cls(stop)

    def check_ids(self, n_vocab: int) -> None:
        """Raise IndexError if a token id is outside of the vocabulary of `n_vocab` tokens."""
        for token in sorted(self.ids):
            if not 0 <= token < n_vocab:
                raise IndexError(
                    f"stop: token id {token} is outside the vocabulary of {n_vocab} tokens"
                )
