"""Every method has its page, and a row in the table of pages."""

import re
from pathlib import Path

from sfl_sim.methods import METHODS

PAGES = Path(__file__).parents[2] / "docs" / "methods"


def test_every_method_has_a_page_and_a_row_in_the_table_of_pages():
    table = (PAGES / "README.md").read_text(encoding="utf-8").split("\n## Symbols")[0]
    rows = re.findall(r"^\| \[(\w+)\]\((\w+)\.md\) \|", table, re.MULTILINE)
    assert METHODS.keys() <= {name for name, page in rows if name == page and (PAGES / f"{page}.md").exists()}
