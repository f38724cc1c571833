"""docs/output.md has the tables of sfl_sim/store/schema.toml: `python tests/docs/test_output.py` writes them anew."""

import re
from pathlib import Path

from sfl_sim.store.schema import tables

PAGE = Path(__file__).parents[2] / "docs" / "output.md"
MARKED = re.compile(r"(<!-- tables of a (\w+): [^\n]* -->\n).*?(<!-- end -->)", re.DOTALL)


def in_words(table):
    """Describe a table in Markdown."""
    about = [
        f"A row is {table.row}.",
        f"It stands under `{table.under}`." * bool(table.under),
        f"Only with {table.only}." * bool(table.only),
        f"Besides: {table.further}." * bool(table.further),
    ]
    lines = [
        f"#### `{table.file}`",
        "",
        " ".join(filter(None, about)),
        "",
        "| column | type | what it is |",
        "|---|---|---|",
    ]
    for name, column in table.columns.items():
        stored = f"`{column.stored}`, in frames `{name}`" if column.stored else f"`{name}`"
        what = [
            column.meaning,
            f"null: {column.null}" * bool(column.null),
            f"only with {column.only}" * bool(column.only),
        ]
        unit = f", {column.unit}" * bool(column.unit)
        lines.append(f"| {stored} | {column.type}{unit} | {'; '.join(filter(None, what))} |")
    return "\n".join(lines)


def with_tables(page):
    """Return the page with its tables written anew."""

    def written(found):
        described = "\n\n".join(map(in_words, tables(found[2]).values()))
        return f"{found[1]}\n{described}\n\n{found[3]}"

    return MARKED.sub(written, page)


def test_the_page_has_the_tables_of_the_schema():
    page = PAGE.read_text(encoding="utf-8")
    assert {kind for _, kind, _ in MARKED.findall(page)} == {"run", "serving", "whatif"}
    assert page == with_tables(page), "write them anew: python tests/docs/test_output.py"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
