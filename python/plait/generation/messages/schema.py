"""JSON schemas of tools' parameters: properties, and the types that a schema permits.

Malformed schemas permit any type; nothing raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote


def property_of(schema: Mapping[str, Any], key: str) -> Any:
    """Return the schema of a property, also if the schema only refers to a part of itself."""
    properties = schema.get("properties")
    if properties is None:
        target = _target(schema.get("$ref"), schema)
        properties = target.get("properties") if isinstance(target, Mapping) else None
    return properties.get(key) if isinstance(properties, Mapping) else None


def permitted_types(schema: Any, root: Mapping[str, Any]) -> set[str] | None:
    """Return the types of the values that a schema permits; None or nothing if they are not known.

    Args:
        schema: The schema.
        root: The schema at which references start.

    Returns:
        Names of types as in JSON schemas, with "number" also for integers.
    """
    try:
        return _types(schema, root, {})
    except RecursionError:
        return None


def _types(
    schema: Any, root: Mapping[str, Any], referred: dict[str, set[str] | None]
) -> set[str] | None:
    """As permitted_types(). `referred` has the types of references, and None while one of them is followed."""
    if not isinstance(schema, Mapping):
        return None
    permitted: list[set[str] | None] = []
    named = schema.get("type")
    if isinstance(named, str | list):
        names = [named] if isinstance(named, str) else named
        names = ["number" if name == "integer" else name for name in names]
        permitted.append({name for name in names if isinstance(name, str)})
    if "const" in schema:
        permitted.append({_type(schema["const"])})
    if isinstance(schema.get("enum"), list):
        permitted.append({_type(value) for value in schema["enum"]})
    for key in ("anyOf", "oneOf", "allOf"):
        options = schema.get(key)
        if isinstance(options, list):
            found = [_types(option, root, referred) for option in options]
            permitted += found if key == "allOf" else [_any_of(found)]
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference not in referred:
            referred[reference] = None
            referred[reference] = _types(_target(reference, root), root, referred)
        permitted.append(referred[reference])
    known = [types for types in permitted if types is not None]
    return set.intersection(*known) if known else None


def _any_of(options: list[set[str] | None]) -> set[str] | None:
    known = [types for types in options if types is not None]
    return set().union(*known) if len(known) == len(options) else None


def _type(value: Any) -> str:
    """Return the name of the type of a JSON value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _target(reference: Any, root: Mapping[str, Any]) -> Any:
    """Return the part of a schema to which a reference such as "#/$defs/City" points, or None."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: Any = root
    for key in unquote(reference[1:]).split("/")[1:]:
        if isinstance(found, list) and key in map(str, range(len(found))):
            found = found[int(key)]
        elif isinstance(found, Mapping):
            found = found.get(key.replace("~1", "/").replace("~0", "~"))
        else:
            return None
    return found
