"""The radix tree, compared with plain lists."""

from hypothesis import given, settings
from hypothesis import strategies as st
from plait.generation.prefix_tree import PrefixTree

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=8)


def agree(a, b):
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


@given(st.lists(TOKENS, max_size=12), st.lists(st.integers(0, 11), max_size=6), TOKENS)
@settings(deadline=None, max_examples=300)
def test_matches_equal_those_of_a_list(items, removed, asked):
    tree = PrefixTree()
    for i, tokens in enumerate(items):
        tree.add(list(tokens), i)
    gone = {i for i in removed if i < len(items)}
    for i in gone:
        tree.remove(items[i], i)
    left = {i: tokens for i, tokens in enumerate(items) if i not in gone}
    assert len(tree) == len(left)
    found = {}
    lengths = []
    for n, matching in tree.matches(asked):
        lengths.append(n)
        for i in matching:
            found.setdefault(i, n)
    assert lengths == sorted(lengths, reverse=True)
    agreeing = {i: agree(tokens, asked) for i, tokens in left.items()}
    assert found == {i: n for i, n in agreeing.items() if n}


@given(st.lists(TOKENS, max_size=12), TOKENS)
@settings(deadline=None, max_examples=300)
def test_branches_are_where_others_leave(items, asked):
    tree = PrefixTree()
    for i, tokens in enumerate(items):
        tree.add(list(tokens), i)
    points = tree.branches(asked)
    assert points >= {
        agree(tokens, asked) for tokens in items if agree(tokens, asked) < len(tokens)
    }
    assert points >= {len(tokens) - 1 for tokens in items if agree(tokens, asked) == len(tokens)}
    assert max(points, default=0) <= len(asked)


def test_removing_all_items_empties_the_tree():
    tree = PrefixTree()
    many = [[1, 2, 3], [1, 2, 4], [1, 2], [5], [1, 2, 3]]
    for i, tokens in enumerate(many):
        tree.add(list(tokens), i)
    for i, tokens in enumerate(many):
        tree.remove(tokens, i)
    assert list(tree.matches([1, 2, 3])) == []
    assert not tree._root.children
