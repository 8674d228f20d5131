"""Replies are parsed as llama.cpp parses them, except for transcripts that are listed with the kind of difference.

llama_cpp/found.json has what the parsers of llama.cpp (of llama-cpp-python 0.3.36) find in the transcripts;
llama_cpp/compare.py writes it. White space around content and reasoning does not count. In llama_cpp/different.json,
"refused" means that llama.cpp raises an error, mostly for broken or several calls, which plait keeps as content or
parses.
"""

import json
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FOUND = json.loads((HERE / "llama_cpp" / "found.json").read_text())
DIFFERENT = json.loads((HERE / "llama_cpp" / "different.json").read_text())


def ours(case):
    """Return content, reasoning and calls of a transcript, which test_parser.py compares with plait's parser."""
    calls = [(call["name"], call["arguments"]) for call in case.get("tool_calls", [])]
    return case["content"].strip(), case.get("reasoning", "").strip(), calls


def theirs(message):
    """Return the same of a message that llama.cpp found, or None for an error."""
    if "error" in message:
        return None
    calls = []
    for call in message.get("tool_calls", []):
        try:
            calls.append((call["function"]["name"], json.loads(call["function"]["arguments"])))
        except ValueError:
            return None
    content, reasoning = (message.get(key) or "" for key in ("content", "reasoning_content"))
    return content.strip(), reasoning.strip(), calls


def difference(case, messages):
    """Return how llama.cpp's results differ from a transcript, or None if one of them is the same."""
    found = [theirs(message) for message in messages]
    if ours(case) in found:
        return None
    if not any(found):
        return "refused"
    calls = max(len(one[2]) for one in found if one)
    return "fewer calls" if calls < len(ours(case)[2]) else "other text or arguments"


@pytest.mark.parametrize("family", sorted(FOUND))
def test_replies_are_parsed_as_by_llama_cpp(family):
    cases = json.loads((HERE / "transcripts" / f"{family}.json").read_text())
    different = {
        case["name"]: how
        for i, case in enumerate(cases)
        if (how := difference(case, [messages[i] for messages in FOUND[family].values()]))
    }
    assert different == DIFFERENT.get(family, {})
