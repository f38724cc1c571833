"""What the site makes from the code: every method has a page, every key an example, every column a row."""

import json
import re

import from_code
import pytest
from browser import needs_browser, open_pages
from typer.main import get_command

from sfl_sim.cli import app
from sfl_sim.methods import METHODS
from sfl_sim.sim.orders import ARRIVAL_DRIVEN, ORDERS
from sfl_sim.store.schema import tables
from sfl_sim.studies.laws import LAWS

markdown = pytest.importorskip("markdown")


def test_every_method_leads_to_a_heading():
    pages = [from_code.page_of(name) for name in from_code.method_options()]
    assert len(set(pages)) == len(pages)
    with pytest.raises(LookupError, match="stubborn"):
        from_code.page_of("stubborn")


def test_every_scenario_key_has_a_meaning_and_an_example():
    assert "\n| `rounds`<br>`" in from_code.scenario_page()


def test_every_method_is_in_a_family_of_the_menu():
    named = re.findall(r"^\| \[(\w+)\]", from_code.methods_table(), re.MULTILINE)
    assert sorted(named) == sorted(METHODS)


WATCH = """<script>
addEventListener("load", () => {
  const input = document.querySelector(".filter input");
  const shown = (words) => {
    input.value = words;
    input.dispatchEvent(new Event("input"));
    const visible = (elements) => [...elements].filter((element) => element.checkVisibility());
    return {
      keys: visible(document.querySelectorAll("tbody tr")).map((row) => row.querySelector("code, a").textContent),
      headings: visible(document.querySelectorAll("h2, h3")).map((heading) => heading.textContent),
      count: document.querySelector(".filter output").textContent,
    };
  };
  parent.postMessage(JSON.stringify([shown(""), shown("clients.network scale"), shown("qqzz"), shown("")]), "*");
});
</script>"""


@needs_browser
@pytest.mark.parametrize("px", [1280, 390])
def test_the_reference_of_keys_is_folded_and_a_filter_opens_what_it_finds(px, tmp_path):
    body = markdown.markdown(from_code.scenario_page(), extensions=["tables", "md_in_html"])
    style, script = ((from_code.DOCS / name).read_text(encoding="utf-8") for name in ("site.css", "filter.js"))
    page = tmp_path / "keys.html"
    page.write_text(f"<html><head></head><style>{style}</style><body>{body}<script>{script}</script></body></html>")

    ((folded, found, nothing, again),) = open_pages([(page, px)], WATCH, tmp_path)

    assert folded["keys"] == []
    assert {"data", "clients", "train"} <= set(folded["headings"])
    assert "scale" in found["keys"]
    assert len(found["keys"]) < 6
    assert {"clients", "clients.network"} <= set(found["headings"])
    assert "data" not in found["headings"]
    assert (nothing["keys"], nothing["headings"]) == ([], [])
    assert re.fullmatch(r"0 of \d{3}", nothing["count"])
    assert again == folded


@pytest.mark.parametrize("kind", ["run", "serving", "whatif"])
def test_the_page_on_files_asks_for_the_tables_of_the_schema(kind):
    page = from_code.with_parts((from_code.DOCS / "output.md").read_text(encoding="utf-8"))
    for name, table in tables(kind).items():
        assert f"#### `{table.file}`" in page, name
        assert all(f"`{column}`" in page for column in table.columns), name


def test_every_order_has_a_row_which_says_whether_arrival_drives_it():
    table = (from_code.DOCS / "methods" / "orders.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)`(?: \(default\))? \| (.+) \|$", table, re.MULTILINE))
    assert set(rows) >= set(ORDERS)
    assert {name for name in ORDERS if rows[name].startswith("arrival")} == set(ARRIVAL_DRIVEN)


def methods_of(page, heading):
    """The methods in the first column of the first table below a heading, without settings."""
    _, section = (from_code.DOCS / "methods" / page).read_text(encoding="utf-8").split(f"\n## {heading}\n")
    _, table = section.split("\n## ")[0].split("\n| method |", 1)
    cells = "".join(re.findall(r"^\| [^|]+ \|", table.split("\n\n")[0], re.MULTILINE))
    return set(re.findall(r"\w+", re.sub(r"`\w+: \w+`", "", cells))) - {"all"}


TABLES_OF_METHODS = [
    ("README.md", "When a client drops out"), ("README.md", "Who steps what"), ("timing.md", "Event graph"),
]  # fmt: skip


@pytest.mark.parametrize(("page", "heading"), TABLES_OF_METHODS)
def test_a_table_of_methods_names_those_that_there_are(page, heading):
    named = methods_of(page, heading)
    assert len(named) > 10
    assert named <= set(METHODS)


def test_of_every_method_a_table_or_its_page_says_what_a_lost_client_leaves():
    for name in set(METHODS) - methods_of("README.md", "When a client drops out"):
        page = from_code.DOCS / "methods" / f"{name}.md"
        assert re.search(r"client (that is )?lost", page.read_text(encoding="utf-8")), name


def test_pages_name_commands_that_exist():
    commands = {name.strip() for name, _ in from_code.commands_of(get_command(app))}
    for page in [from_code.ROOT / "README.md", *from_code.DOCS.rglob("*.md")]:
        text = page.read_text(encoding="utf-8")
        lines = "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).splitlines()
        for command in [*re.findall(r"`(sfl-sim[^`]*)`", text), *lines]:
            if named := re.match(r"sfl-sim\s+([a-z]+)\s+([\w./]+)", command):
                assert named[1] in {*commands, "live"} or " ".join(named.groups()) in commands, (page.name, command)


def test_the_page_on_laws_has_a_heading_for_each_and_their_statements():
    page = from_code.with_parts((from_code.DOCS / "laws.md").read_text(encoding="utf-8"))
    assert re.findall(r"^## (\d+)\.", page, re.MULTILINE) == [str(law.number) for law in LAWS]
    assert all(f"| {law.number} | {law.statement} |" in page for law in LAWS)


def test_networks_of_other_libraries_are_counted_once_and_the_refused_ones_named():
    page = from_code.with_parts((from_code.DOCS / "results.md").read_text(encoding="utf-8"))
    _, table = page.split("## Networks of other libraries")
    rows = json.loads((from_code.ROOT / "benchmarks" / "results" / "models.json").read_text(encoding="utf-8"))["rows"]
    families = re.findall(r"^\| \w+ \| \w[\w ]* \| (\d+) \|(.*)\|$", table, re.MULTILINE)
    assert sum(int(tried) for tried, _ in families) == len(rows)
    assert all(sum(map(int, outcomes.split("|"))) == int(tried) for tried, outcomes in families)
    assert all(f"| {row['network']} |" in table for row in rows if row["outcome"] in ("refused", "too slow", "fails"))


def test_the_page_on_orders_names_all_methods_that_follow_one():
    def follows(kind):
        options = {"server": "shared"} if "server" in kind.Options.model_fields else {}
        return kind.has("follows_order", kind.Options(**options))

    page = (from_code.DOCS / "methods" / "orders.md").read_text(encoding="utf-8")
    sentence = re.search(r"These methods follow it: (.*?)\. ", page, re.DOTALL)[1].replace("`server: shared`", "")
    assert sorted(re.findall(r"`(\w+)`", sentence)) == sorted(name for name, kind in METHODS.items() if follows(kind))
