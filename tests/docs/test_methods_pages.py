"""Every method has its page and a row in the table of methods, every order a row in the table of orders.

`python tests/docs/test_methods_pages.py` writes the table of methods anew, from docstrings and traits.
"""

import inspect
import re
from pathlib import Path

from sfl_sim.methods import METHODS
from sfl_sim.sim.orders import ARRIVAL_DRIVEN, ORDERS

PAGES = Path(__file__).parents[2] / "docs" / "methods"
README = PAGES / "README.md"
MARKED = re.compile(r"(<!-- methods: [^\n]* -->\n).*?(<!-- end -->)", re.DOTALL)
TRAITS = {
    "is split": lambda kind: kind.splits(kind.Options()),
    "one model at the server": lambda kind: kind.shares_server_model,
    "obeys `server.order`": lambda kind: kind.serves_in_order(kind.Options()),
    "tiers of servers": lambda kind: kind.tiered,
    "gradients come down": lambda kind: kind.splits(kind.Options()) and kind.sends_gradients,
    "labels go up": lambda kind: kind.splits(kind.Options()) and kind.sends_labels,
    "clients upload models": lambda kind: kind.uploads_model,
    "exits at clients": lambda kind: kind.has_exits,
}


def with_table(page):
    """Return the page with its table written anew."""
    lines = ["| method | what it does | " + " | ".join(TRAITS) + " |", "|---" * (2 + len(TRAITS)) + "|"]
    for name, kind in METHODS.items():
        about = inspect.getdoc(kind).split("\n", 1)[0].removesuffix(".")
        marks = ["✓" if holds(kind) else "" for holds in TRAITS.values()]
        lines.append(f"| [{name}]({name}.md) | {about} | {' | '.join(marks)} |")
    return MARKED.sub(lambda found: found[1] + "\n".join(lines) + "\n" + found[2], page)


def test_every_method_has_a_page_and_a_row_in_the_table_of_methods():
    assert all((PAGES / f"{name}.md").exists() for name in METHODS)
    page = README.read_text(encoding="utf-8")
    assert page == with_table(page), "write it anew: python tests/docs/test_methods_pages.py"


def test_every_order_has_a_row_which_says_whether_arrival_drives_it():
    table = (PAGES / "orders.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)`(?: \(default\))? \| (.+) \|$", table, re.MULTILINE))
    assert set(rows) >= set(ORDERS)
    assert {name for name in ORDERS if rows[name].startswith("arrival")} == set(ARRIVAL_DRIVEN)


if __name__ == "__main__":
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
