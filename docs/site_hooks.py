"""Hooks of MkDocs: pages and parts made from the code (from_code.py), links, formulas as MathML, diagrams as SVG.

All of it happens when the site is built, without a network; nothing that is made here is committed.
"""

from __future__ import annotations

import html
import os
import re
from pathlib import Path
from typing import Any

import from_code
from latex2mathml.converter import convert
from merm import render_diagram
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from plotly.offline import get_plotlyjs

DOCS, ROOT = from_code.DOCS, from_code.ROOT
FROM_ROOT = {
    "profiles/README.md": "reference/profiles.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""Pages of the site that lie outside docs/, by their path in the repository."""
NOTEBOOKS = ("tutorial/5-in-a-notebook.ipynb",)
"""Notebooks below docs/, each of which is a page of the site, too."""
LINK = re.compile(r"(\[[^\]]*\])\(([^)#:\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from the code, and those that lie outside docs/."""
    made = {
        "reference/scenario.md": from_code.scenario_page(),
        "reference/commands.md": from_code.commands_page(),
        "reference/python.md": from_code.python_page(),
        "reference/methods.md": from_code.vocabulary_page(),
        "reference/inside.md": from_code.inside_page(),
    }
    copied = {page: (ROOT / source).read_text(encoding="utf-8") for source, page in FROM_ROOT.items()}
    notebooks = {notebook: str(Path(notebook).with_suffix(".md")) for notebook in NOTEBOOKS}
    shown = {page: from_code.notebook_page(DOCS / notebook) for notebook, page in notebooks.items()}
    for path, text in {**made, **copied, **shown}.items():
        files.append(File.generated(config, path, content=text))
    files.append(File.generated(config, from_code.PLOTLY, content=get_plotlyjs()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in what is made from the code; lead links that leave docs/ to pages of the site, or leave their text."""
    path = page.file.src_uri
    source = next((ROOT / at for at, to in FROM_ROOT.items() if to == path), DOCS / path)

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        at = Path(os.path.normpath(source.parent / target))
        if not at.exists():
            return found[0]  # a generated page, or a broken link: MkDocs tells which
        inside = FROM_ROOT.get(at.relative_to(ROOT).as_posix())
        if inside is None and at.is_relative_to(DOCS):
            inside = at.relative_to(DOCS).as_posix()
        if inside is None or at.is_dir():
            return text[1:-1]
        return f"{text}({os.path.relpath(inside, Path(path).parent)}{anchor})"

    return LINK.sub(link, from_code.with_parts(markdown))


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn formulas into MathML, which browsers show without a script."""
    content = re.sub(
        r'<span class="arithmatex">\\\((.*?)\\\)</span>', lambda tex: convert(html.unescape(tex[1])), content
    )
    return re.sub(
        r'<div class="arithmatex">\\\[(.*?)\\\]</div>',
        lambda tex: convert(re.sub(r"\\tag\{(.*?)\}", r"\\qquad (\1)", html.unescape(tex[1].strip())), display="block"),
        content,
        flags=re.DOTALL,
    )


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Take the shim by which search works in pages that are opened from files from here, not from the network."""
    here = "../" * page.file.src_uri.count("/")
    return output.replace("https://unpkg.com/iframe-worker/shim", f"{here}iframe-worker.js")


def diagram(source: str, language: str, css_class: str, options: Any, md: Any, **_: Any) -> str:
    """Draw a Mermaid diagram as SVG (a formatter of pymdownx.superfences)."""
    return f'<div class="diagram">{render_diagram(source)}</div>'
