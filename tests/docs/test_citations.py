"""Every document and file that the repository cites is in it."""

import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("sfl_sim", "tests", "docs", "scenarios", "profiles", "benchmarks", "research", "reports", ".")
ENDINGS = {".py", ".md", ".yaml", ".toml", ".ipynb"}
TEXTS = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).glob("*" if folder == "." else "**/*")
    if path.suffix in ENDINGS and path.is_file() and path != Path(__file__)
)
PAGE = re.compile(r"(?<![\w./*<>{}-])((?:\.\./)*(?:[\w-]+/)*[\w-]+\.md)\b")
PATH = re.compile(r"(?<![\w./-])((?:sfl_sim|tests|docs|scenarios|benchmarks|profiles|research)/[\w./-]+\.\w+)\b")
OF_OTHERS = {"docs/notebook/benchmark.ipynb", "docs/notebook/parser.ipynb", "benchmark/README.md",
             "docs/original/current_system_and_device_profile_20260421.md"}  # fmt: skip
"""Files of the projects that benchmarks and profiles are taken from."""
SITE = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
"""Pages of the site, from docs/, some of which are made when it is built."""


def is_there(cited, citing):
    """Return whether a path that a file cites exists, seen from the root, the file's folder, docs/ or docs/methods/."""
    folders = (ROOT, citing.parent, ROOT / "docs", ROOT / "docs" / "methods")
    from_docs = os.path.relpath(citing.parent / cited, ROOT / "docs")
    return from_docs in SITE or any((folder / cited).exists() for folder in folders)


def test_what_files_cite_is_in_the_repository():
    missing = {}
    for path in TEXTS:
        text = path.read_text(encoding="utf-8")
        cited = {*PAGE.findall(text), *(PATH.findall(text) if path.suffix == ".md" else ())} - OF_OTHERS
        if gone := sorted(name for name in cited if not is_there(name, path)):
            missing[str(path.relative_to(ROOT))] = gone
    assert not missing


def slugs(page):
    """Return the anchors of a page: its headings in lower case, without signs."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        re.sub(r"[-\s]+", "-", re.sub(r"\]\([^)]*\)|[^\w\s-]", "", heading).strip().lower()) for heading in headings
    }


def test_headings_that_code_and_journal_cite_are_on_their_pages():
    missing = []
    for path in TEXTS:
        if path.suffix != ".md" or path.is_relative_to(ROOT / "research"):  # `make docs` knows those of the site
            for name, anchor in re.findall(PAGE.pattern + r"#([\w-]+)", path.read_text(encoding="utf-8")):
                page = (ROOT if name.startswith("docs/") else path.parent) / name
                if page.exists() and anchor not in slugs(page):
                    missing.append((str(path.relative_to(ROOT)), f"{name}#{anchor}"))
    assert not missing
