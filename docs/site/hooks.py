"""Hooks of MkDocs: notebooks and other pages from outside of docs/, links to them, and navigation by folders."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter
from traitlets.config import Config

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# Pages made from files outside of docs/: the page and the file.
OUTSIDE = {name: name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")}
OUTSIDE |= {f"notebooks/{path.stem}.md": f"notebooks/{path.name}" for path in NOTEBOOKS}
PAGES = {file: page for page, file in OUTSIDE.items()}
MODULES = ("plait", "plait.figures", "plait.quant", "plait.testing")
ENTRY = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
CODE = re.compile(r"(^```.*?^```|`[^`\n]*`)", re.MULTILINE | re.DOTALL)


def on_config(config: Any) -> Any:
    """Add every guide, notebook and decision record to the navigation."""
    sections = {title: pages for section in config.nav for title, pages in section.items()}
    sections["How-to guides"] += _pages("how-to", skip=("index.md", "notebooks.md"))
    sections["Notebooks"] += [page for page in OUTSIDE if page.startswith("notebooks/")]
    sections["Developers"].append(
        {"Decisions": ["decisions/README.md", *_pages("decisions", skip=("README.md",))]}
    )
    return config


def _pages(folder: str, skip: tuple[str, ...]) -> list[str]:
    found = sorted(path.name for path in (ROOT / "docs" / folder).glob("*.md"))
    return [f"{folder}/{name}" for name in found if name not in skip]


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside of docs/, and the figures of the notebooks."""
    for page, name in OUTSIDE.items():
        path = ROOT / name
        if path.suffix == ".md":
            files.append(File.generated(config, page, content=path.read_text(encoding="utf-8")))
            continue
        figures = f"{path.stem}-{{cell_index}}-{{index}}{{extension}}"
        exporter = MarkdownExporter(
            config=Config({"ExtractOutputPreprocessor": {"output_filename_template": figures}})
        )
        text, resources = exporter.from_filename(str(path))
        # Outputs that follow each other are one block of code, which would have a gap.
        text = re.sub(r"(?m)(?<=\n)\n{3,}(?= {4}\S)", "\n", text)
        files.append(File.generated(config, page, content=text))
        for figure, content in resources["outputs"].items():
            files.append(File.generated(config, f"notebooks/{figure}", content=content))
    return files


def _names_on_no_page() -> str:
    """Return entries of the public names that no page of the reference has yet."""
    pages = (ROOT / "docs/reference").glob("*.md")
    found = {name for page in pages for name in ENTRY.findall(page.read_text(encoding="utf-8"))}
    missing = sorted(set(_public_names()) - found - set(MODULES))
    entries = "".join(f"\n::: {name}\n" for name in missing)
    return f"\n## Other names\n{entries}" if missing else ""


def _public_names() -> Iterator[str]:
    """Yield the names in __all__ of the public modules, read from their sources."""
    for module in MODULES:
        path = ROOT / "python" / module.replace(".", "/")
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        for node in ast.parse(source.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names = ast.literal_eval(node.value)
                yield from (f"{module}.{n}" for n in names if not n.startswith("__"))


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Turn links to files of the repository into links to pages, or into plain text if they are no pages."""
    if page.file.src_uri == "reference/index.md":
        markdown += _names_on_no_page()
    place = posixpath.dirname(OUTSIDE.get(page.file.src_uri, f"docs/{page.file.src_uri}"))

    def replaced(link: re.Match[str]) -> str:
        label, target = link.groups()
        path, _, anchor = target.partition("#")
        if not path or ":" in path:
            return link[0]
        full = posixpath.normpath(posixpath.join(place, path))
        if not (ROOT / full).exists():
            raise PluginError(f"{page.file.src_uri}: the link to {target} leads nowhere")
        source = PAGES.get(full, full.removeprefix("docs/"))
        found = files.get_file_from_path(source)
        in_site = full in PAGES or full.startswith("docs/")
        if not in_site or found is None or not found.inclusion.is_included():
            return label
        up = posixpath.relpath(source, posixpath.dirname(page.file.src_uri) or ".")
        return f"[{label}]({up}{'#' if anchor else ''}{anchor})"

    # Code is hidden while links are replaced, because a label may contain code and code may look like a link.
    kept: list[str] = []

    def hide(code: re.Match[str]) -> str:
        kept.append(code[0])
        return f"\0{len(kept) - 1}\0"

    text = LINK.sub(replaced, CODE.sub(hide, markdown))
    return re.sub(r"\0(\d+)\0", lambda mark: kept[int(mark[1])], text)


def on_page_content(html: str, page: Page, config: Any, files: Files) -> str:
    """Give pages without sections, such as wide tables, the room of the table of contents."""
    if not any(heading.children for heading in page.toc):
        page.meta["hide"] = ["toc"]
    return html
