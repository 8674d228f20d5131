"""Radix tree over token sequences, which finds common prefixes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class _Node(Generic[T]):
    """The tokens of one edge, and the items whose token sequences pass through or end here."""

    __slots__ = ("children", "edge", "ends", "items")

    def __init__(self, edge: list[int], items: dict[T, None], ends: dict[T, None]) -> None:
        self.edge = edge
        self.items = items  # in order of insertion
        self.ends = ends
        self.children: dict[int, _Node[T]] = {}

    def split(self, n: int) -> None:
        """Split the edge after `n` tokens; the rest becomes a child."""
        lower: _Node[T] = _Node(self.edge[n:], dict(self.items), self.ends)
        lower.children = self.children
        self.edge, self.ends = self.edge[:n], {}
        self.children = {lower.edge[0]: lower}


class PrefixTree(Generic[T]):
    """Items filed under token sequences. Several items can share a sequence.

    The time of a lookup is proportional to the length of the match and does not depend on the
    number of items.
    """

    def __init__(self) -> None:
        self._root: _Node[T] = _Node([], {}, {})

    def __len__(self) -> int:
        return len(self._root.items)

    def add(self, tokens: list[int], item: T) -> None:
        """File an item, which must not be in the tree yet, under a token sequence."""
        node, done = self._root, 0
        node.items[item] = None
        while done < len(tokens):
            child = node.children.get(tokens[done])
            if child is None:
                node.children[tokens[done]] = _Node(tokens[done:], {item: None}, {item: None})
                return
            n = _common_length(child.edge, tokens, done)
            if n < len(child.edge):
                child.split(n)
            child.items[item] = None
            node, done = child, done + n
        node.ends[item] = None

    def remove(self, tokens: list[int], item: T) -> None:
        """Remove an item that is filed under the given token sequence."""
        path, done = [self._root], 0
        while done < len(tokens):
            path.append(path[-1].children[tokens[done]])
            done += len(path[-1].edge)
        for node in path:
            del node.items[item]
        del path[-1].ends[item]
        for parent, node in zip(path[-2::-1], path[:0:-1], strict=True):
            if not node.items:
                del parent.children[node.edge[0]]
            elif len(node.children) == 1 and not node.ends:
                (child,) = node.children.values()
                node.edge = node.edge + child.edge
                node.ends, node.children = child.ends, child.children

    def clear(self) -> None:
        """Remove all items."""
        self._root = _Node([], {}, {})

    def matches(self, tokens: list[int]) -> Iterator[tuple[int, dict[T, None]]]:
        """Yield (n, items that share the first n > 0 of these tokens), largest n first."""
        found = []
        node, done = self._root, 0
        while done < len(tokens):
            child = node.children.get(tokens[done])
            if child is None:
                break
            n = _common_length(child.edge, tokens, done)
            found.append((done + n, child.items))
            if n < len(child.edge):
                break
            node, done = child, done + n
        return reversed(found)

    def branches(self, tokens: list[int]) -> set[int]:
        """Return the numbers of tokens after which items diverge from these tokens, or end.

        For an item that ends, the number is one less than its length, because its last token must
        be computed again for its logits.
        """
        points = set()
        node, done = self._root, 0
        while done < len(tokens):
            child = node.children.get(tokens[done])
            if len(node.items) > (len(child.items) if child else 0):
                points.add(done)
            if child is None:
                return points
            n = _common_length(child.edge, tokens, done)
            done += n
            if n < len(child.edge):
                points.add(done)
                return points
            if child.ends:
                points.add(done - 1)
            node = child
        if node.children:
            points.add(done)
        return points


def _common_length(edge: list[int], tokens: list[int], start: int) -> int:
    """Return how many tokens of the edge equal `tokens` from index `start` on."""
    limit = min(len(edge), len(tokens) - start)
    if tokens[start : start + limit] == edge[:limit]:
        return limit
    return next(i for i in range(limit) if edge[i] != tokens[start + i])
