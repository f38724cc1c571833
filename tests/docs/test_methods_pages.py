"""Every method has its page and a row in the table of pages, every order a row in the table of orders."""

import re
from pathlib import Path

from sfl_sim.methods import METHODS
from sfl_sim.sim.orders import ARRIVAL_DRIVEN, ORDERS

PAGES = Path(__file__).parents[2] / "docs" / "methods"


def test_every_method_has_a_page_and_a_row_in_the_table_of_pages():
    table = (PAGES / "README.md").read_text(encoding="utf-8").split("\n## Symbols")[0]
    rows = re.findall(r"^\| \[(\w+)\]\((\w+)\.md\) \|", table, re.MULTILINE)
    assert METHODS.keys() <= {name for name, page in rows if name == page and (PAGES / f"{page}.md").exists()}


def test_every_order_has_a_row_which_says_whether_arrival_drives_it():
    table = (PAGES / "orders.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)`(?: \(default\))? \| (.+) \|$", table, re.MULTILINE))
    assert set(rows) >= set(ORDERS)
    assert {name for name in ORDERS if rows[name].startswith("arrival")} == set(ARRIVAL_DRIVEN)
