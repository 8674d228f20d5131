#!/usr/bin/env python3
"""Parse the transcripts by llama.cpp's parsers, and write what they found to found.json beside this file.

    compare.py SOURCE BUILD

SOURCE is the source tree of llama.cpp, which also has the templates; BUILD is a folder in which it was built with
shared libraries. test_llama_cpp.py compares the result with plait's parsers. A family that several templates use is
parsed with each of them, with and without reasoning. `gemma` and `json` are absent: llama.cpp has no parser for the
first, and the second is a form that plait asks for itself.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TRANSCRIPTS = HERE.parent / "transcripts"
TEMPLATES = {
    "deepseek": ["deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek-ai-DeepSeek-V3.1"],
    "gemma4": ["google-gemma-4-31B-it"],
    "glm": ["GLM-4.6"],
    "granite": ["ibm-granite-granite-3.3-2B-Instruct", "ibm-granite-granite-4.0"],
    "harmony": ["openai-gpt-oss-120b"],
    "hermes": ["Qwen-Qwen3-0.6B", "NousResearch-Hermes-3-Llama-3.1-8B-tool_use"],
    "lfm2": ["LFM2-8B-A1B", "LFM2.5-Instruct"],
    "llama3": ["meta-llama-Llama-3.1-8B-Instruct", "meta-llama-Llama-3.2-3B-Instruct"],
    "mistral": ["mistralai-Mistral-Nemo-Instruct-2407", "mistralai-Ministral-3-14B-Reasoning-2512"],
    "qwen-coder": ["Qwen3-Coder"],
}


def build(source: Path, binaries: Path, folder: Path) -> Path:
    """Compile parse.cpp; return the program."""
    program = folder / "parse"
    libraries = [
        path for name in ("llama-common", "llama") for path in binaries.rglob(f"lib{name}*.so*")
    ]
    folders = sorted({path.parent for path in libraries})
    subprocess.run(
        ["clang++-19", "-std=c++17", "-O1", HERE / "parse.cpp", "-o", program,
         *(f"-I{source / part}" for part in ("common", "include", "ggml/include", "vendor")),
         *libraries, *(f"-Wl,-rpath,{path}" for path in folders)],
        check=True,
    )  # fmt: skip
    return program


def completed(tools: list[Any]) -> list[Any]:
    """Return tools whose parameters have one type each, and arrays of text; the template of gpt-oss needs both."""
    for tool in tools:
        for parameter in tool["function"]["parameters"]["properties"].values():
            if isinstance(parameter["type"], list):
                parameter["type"] = parameter["type"][0]
            if parameter["type"] == "array":
                parameter.setdefault("items", {"type": "string"})
    return tools


def main() -> None:
    source, binaries = map(Path, sys.argv[1:3])
    found: dict[str, dict[str, list[object]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        program = build(source, binaries, Path(folder))
        tools = Path(folder) / "tools.json"
        tools.write_text(
            json.dumps(completed(json.loads((TRANSCRIPTS / "tools.json").read_text())))
        )
        for family, templates in TEMPLATES.items():
            for name, mode in itertools.product(templates, ("thinking", "plain")):
                path = source / "models" / "templates" / f"{name}.jinja"
                done = subprocess.run(
                    [program, path, tools, TRANSCRIPTS / f"{family}.json", mode],
                    check=True, capture_output=True, text=True,
                )  # fmt: skip
                found.setdefault(family, {})[f"{name}, {mode}"] = [
                    {"error": True} if "error" in message else message
                    for message in json.loads(done.stdout.splitlines()[-1])
                ]
    (HERE / "found.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
