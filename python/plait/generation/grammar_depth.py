"""How deep the rules and references of a grammar are nested.

llguidance follows references by recursion. It limits the nesting of brackets and of JSON, but not the length of a chain
of references, which would overflow the stack. The depth is computed without recursion, as an upper bound: a cycle of
references counts each of its rules once, since llguidance compiles a rule once.

Source: the lexer and the compilers of llguidance 1.9 (parser/src/lark and parser/src/json).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Final

# Lexemes of llguidance's dialect of Lark, as far as they matter for references.
_LEXEME: Final = re.compile(
    r"""(?P<other>(?:\#|//)[^\n]*                     # a comment
        | "(?:\\.|[^"\\\x00-\x1f\x7f])*"              # a string
        | /(?:\\.|[^/\\])+/[imslux]*                  # a regular expression
        | <[^<>\s]+> | @[A-Za-z0-9_-]+                # a token, another grammar
        | [\ \t\r!?] )                                # what may precede a name
    | (?P<json>%(?:json|regex|llguidance)[\ \t\r\n]*) # JSON follows
    | (?P<name>_?(?:[a-z][_a-z0-9-]*|[A-Z][_A-Z0-9-]*))
    | (?P<line>\n)
    | (?P<open>[(\[{])
    | (?P<close>[)\]}])
    | (?P<rest>[^"/])""",
    re.VERBOSE,
)
_DEFINITIONS: Final = ("$defs", "definitions")
_JSON: Final = json.JSONDecoder(parse_int=float)  # int() refuses long numbers


def depth_of(source: str) -> int:
    """Return the depth of a grammar: the most rules, references, brackets and JSON values inside each other.

    Args:
        source: The grammar in llguidance's internal format: Lark, or a JSON object with a list of grammars.

    Raises:
        ValueError: JSON is nested too deeply for Python's parser, whose limit is above that of llguidance.
    """
    try:
        listed = _JSON.decode(source)
    except ValueError:
        return _depth_of_lark(source)
    except RecursionError:
        raise ValueError("grammar: JSON is nested too deeply") from None
    parts = listed.get("grammars") if isinstance(listed, dict) else None
    depths = [0]
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict):
            depths.append(_depth_of_schema(part.get("json_schema")))
            if isinstance(part.get("lark_grammar"), str):
                depths.append(_depth_of_lark(part["lark_grammar"]))
    return max(depths)


def _depth_of_lark(text: str) -> int:
    """Return the depth of rules, and of JSON schemas among them, which are compiled one by one."""
    depths: dict[Hashable, int] = {"": 1}
    names = defaultdict[Hashable, set[Hashable]](set)
    rule, level, is_first, at = "", 0, True, 0
    schemas = [0]
    while found := _LEXEME.match(text, at):
        at, kind = found.end(), found.lastgroup
        if kind == "name" and is_first:
            rule = found[0]
            depths.setdefault(rule, 1)
        elif kind == "name":
            names[rule].add(found[0])
        elif kind == "open":
            level += 1
            depths[rule] = max(depths[rule], 1 + level)
        elif kind == "close":
            level = max(level - 1, 0)
        elif kind == "json":
            schema, at = _json_at(text, at)
            if found[0].startswith("%json"):
                schemas.append(_depth_of_schema(schema))
        if kind != "other":
            is_first = kind == "line"
    # Text that is no lexeme ends the loop; llguidance refuses it before it follows references.
    return max(_longest(depths, names), *schemas)


def _json_at(text: str, at: int) -> tuple[Any, int]:
    """Return a JSON value and where it ends; without one, the end of the text, which llguidance then refuses."""
    try:
        return _JSON.raw_decode(text, at)
    except ValueError:
        return None, len(text)
    except RecursionError:
        raise ValueError("grammar: JSON is nested too deeply") from None


def _depth_of_schema(schema: Any) -> int:
    """Return the depth of a JSON schema. Definitions count where references lead to them."""
    if not isinstance(schema, dict):
        return 0
    definitions = [schema[key] for key in _DEFINITIONS if isinstance(schema.get(key), dict)]
    parts = [schema, *definitions]  # parents before children
    children: dict[int, list[Any]] = {}
    for one in parts:
        children[id(one)] = [
            child for child in (one.values() if isinstance(one, dict) else one)
            if isinstance(child, dict | list) and not (one is schema and any(child is d for d in definitions))
        ]  # fmt: skip
        parts += children[id(one)]
    heights: dict[int, int] = {}
    for one in reversed(parts):
        heights[id(one)] = 1 + max((heights[id(child)] for child in children[id(one)]), default=0)
    objects = [one for one in parts if isinstance(one, dict)]
    texts = {one["$ref"] for one in objects if isinstance(one.get("$ref"), str)}
    targets = {text: _target(schema, text) for text in texts}
    has_ids = any(isinstance(one.get(key), str) for one in objects[1:] for key in ("$id", "id"))
    if has_ids or None in targets.values():  # then each reference may lead to any part
        return max(heights.values()) * (len(texts) + 1)
    # A block is a part to which a reference leads, without the blocks in it.
    starts = {id(target) for target in targets.values()}
    block: dict[int, int] = {id(one): id(one) for one in (schema, *definitions)}
    leads = defaultdict[Hashable, set[Hashable]](set)
    depths: dict[Hashable, int] = {id(schema): heights[id(schema)]}
    for one in parts:
        own = block[id(one)]
        depths.setdefault(own, 0)
        if isinstance(one, dict) and isinstance(one.get("$ref"), str):
            leads[own].add(one["$ref"])
        for child in children[id(one)]:
            block[id(child)] = id(child) if id(child) in starts else own
            leads[own].add(block[id(child)])
    for text, target in targets.items():
        depths[text] = heights.get(id(target), 1)
        leads[text].add(id(target))
    return _longest(depths, leads)


def _target(schema: Any, reference: str) -> Any:
    """Return where a reference of the form #/a/b leads; None for other forms, of which several can be equal."""
    name, *keys = reference.split("/")
    if name != "#" or "%" in reference or "~" in reference:
        return None
    found = schema
    for key in keys:
        if isinstance(found, dict):
            found = found.get(key)
        elif isinstance(found, list) and key.isascii() and key.isdecimal() and len(key) < 9:
            i = int(key)
            found = found[i] if str(i) == key and i < len(found) else None
        else:
            return None
    return found


def _longest(weights: Mapping[Hashable, int], edges: Mapping[Hashable, Iterable[Hashable]]) -> int:
    """Return the largest weight of a path, in which a strongly connected component counts each of its nodes once.

    Tarjan 1972, doi:10.1137/0201010, without recursion.
    """
    order: dict[Hashable, int] = {}
    low: dict[Hashable, int] = {}
    longest: dict[Hashable, int] = {}  # of nodes whose component is complete
    opened: list[Hashable] = []

    def opens(node: Hashable) -> tuple[Hashable, Any]:
        order[node] = low[node] = len(order)
        opened.append(node)
        return node, iter(edges.get(node, ()))

    for start in weights:
        path = [] if start in order else [opens(start)]
        while path:
            node, rest = path[-1]
            target = next((one for one in rest if one in weights and one not in longest), None)
            if target is not None and target in order:
                low[node] = min(low[node], order[target])
            elif target is not None:
                path.append(opens(target))
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == order[node]:
                    component = [opened.pop()]
                    while component[-1] != node:
                        component.append(opened.pop())
                    leads = {one for member in component for one in edges.get(member, ())}
                    total = sum(weights[one] for one in component)
                    total += max((longest[one] for one in leads if one in longest), default=0)
                    longest |= dict.fromkeys(component, total)
    return max(longest.values())
