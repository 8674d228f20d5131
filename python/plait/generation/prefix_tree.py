"""Which of many token sequences begin alike: a radix tree."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class _Node(Generic[T]):
    """Tokens that follow the parent's, and the items whose tokens lead here or through here."""

    __slots__ = ("children", "edge", "ends", "items")

    def __init__(self, edge: list[int], items: dict[T, None], ends: dict[T, None]) -> None:
        self.edge = edge
        self.items = items  # in order of insertion
        self.ends = ends
        self.children: dict[int, _Node[T]] = {}

    def split(self, n: int) -> None:
        """The edge ends after n tokens; what follows becomes a child."""
        lower: _Node[T] = _Node(self.edge[n:], dict(self.items), self.ends)
        lower.children = self.children
        self.edge, self.ends = self.edge[:n], {}
        self.children = {lower.edge[0]: lower}


class PrefixTree(Generic[T]):
    """Items filed under token sequences, which several may share.

    Looking up takes time in proportion to the tokens that agree, not to the number of items.
    """

    def __init__(self) -> None:
        self._root: _Node[T] = _Node([], {}, {})

    def __len__(self) -> int:
        return len(self._root.items)

    def add(self, tokens: list[int], item: T) -> None:
        """File an item that is not there yet."""
        node, done = self._root, 0
        node.items[item] = None
        while done < len(tokens):
            child = node.children.get(tokens[done])
            if child is None:
                node.children[tokens[done]] = _Node(tokens[done:], {item: None}, {item: None})
                return
            n = _agree(child.edge, tokens, done)
            if n < len(child.edge):
                child.split(n)
            child.items[item] = None
            node, done = child, done + n
        node.ends[item] = None

    def remove(self, tokens: list[int], item: T) -> None:
        """Take out an item that was filed under these tokens."""
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
        """Take out all items."""
        self._root = _Node([], {}, {})

    def matches(self, tokens: list[int]) -> Iterator[tuple[int, dict[T, None]]]:
        """(n, the items that begin with the first n of these tokens), the largest n first; n above 0."""
        found = []
        node, done = self._root, 0
        while done < len(tokens):
            child = node.children.get(tokens[done])
            if child is None:
                break
            n = _agree(child.edge, tokens, done)
            found.append((done + n, child.items))
            if n < len(child.edge):
                break
            node, done = child, done + n
        return reversed(found)

    def branches(self, tokens: list[int]) -> set[int]:
        """The numbers of tokens after which items leave these, or end. Items that end there count one token less."""
        points = set()
        node, done = self._root, 0
        while done < len(tokens):
            child = node.children.get(tokens[done])
            if len(node.items) > (len(child.items) if child else 0):
                points.add(done)
            if child is None:
                return points
            n = _agree(child.edge, tokens, done)
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


def _agree(edge: list[int], tokens: list[int], start: int) -> int:
    """How many of the edge's tokens stand in `tokens` from `start` on."""
    most = min(len(edge), len(tokens) - start)
    if tokens[start : start + most] == edge[:most]:
        return most
    return next(i for i in range(most) if edge[i] != tokens[start + i])
