"""What pages of the site say that is made from the code: keys, commands, Python, columns, methods, and names.

It is made when the site is built, and not committed. A page asks for a part by a line that ends with
`<!-- from the code: PART -->` and says, where the page is not on the site, where to look instead.
"""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args

import plotly.io
import typer
import yaml

import sfl_sim
from sfl_sim.build.catalogue import catalogue, choices, method_options
from sfl_sim.build.tiers import RULES
from sfl_sim.cli import app
from sfl_sim.engine.choices import CHOICES
from sfl_sim.knowledge import known_by
from sfl_sim.methods import METHODS
from sfl_sim.methods.cut_policies import CUT_POLICIES
from sfl_sim.scenario.concerns import DECIDED
from sfl_sim.scenario.fields import Decided
from sfl_sim.scenario.schema import json_schema, members
from sfl_sim.sim.orders import OF_RUNS, ORDERS
from sfl_sim.store.schema import FolderKind, StoredTable, tables
from sfl_sim.studies.laws import LAWS

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PLOTLY = "plotly.min.js"
"""File of the site that draws the figures of notebooks."""
UNITS = {"macs_per_s": "MAC/s", "rate_per_s": "1/s", "_bps": "bit/s", "_s": "s", "_h": "h", "_w": "W"}
"""Units by the end of a key's name; the first that fits."""
EXAMPLES = {
    "model.path": "my_gpt2",
    "clients.choice.kind": "oort",
    "model.init.seed": 1,
    "data.image_size": 32,
    "data.tokenizer": "my_tokenizer",
    "data.superclasses": True,
    "data.validation.samples": 500,
    "data.separation": 5,
    "clients.network.shared.file": "edges.csv",
    "clients.network.shared.capacity_bps.up": 2e6,
    "clients.network.shared.capacity_bps.down": 1e7,
    "clients.power.uplink_w": 1.2,
    "clients.power.downlink_w": 0.9,
    "train.local_epochs.by": "device_speed",
    "train.local_epochs.values": [1, 2],
    "train.lr.by": "device_speed",
    "train.lr.values": [0.02, 0.05],
    "train.server.momentum": 0.9,
    "train.server.weight_decay": 1e-4,
    "train.max_graphs": 8,
    "train.on_round_end": "my_code:look",
    "report.exits_every": 25,
    "report.representations": 400,
    "report.metrics": {"surest": "my_code:surest"},
    "serving.rho": 0.5,
    "serving.arrivals: trace.file": "requests.csv",
    "serving.service: measured.file": "service_s.csv",
    "serving.threshold: fixed.entropy": 0.5,
    "serving.threshold: latency_budget.target_s": 0.2,
}
"""Examples of keys that neither a page of this site nor a shipped scenario gives."""
TRAITS = {
    "is split": lambda kind: kind.has("is_split", kind.Options()),
    "one model at the server": lambda kind: kind.shares_server_model,
    "obeys `server.order`": lambda kind: kind.has("follows_order", kind.Options()),
    "tiers of servers": lambda kind: kind.tiered,
    "gradients come down": lambda kind: kind.has("is_split", kind.Options()) and kind.sends_gradients,
    "labels go up": lambda kind: kind.has("is_split", kind.Options()) and kind.sends_labels,
    "clients upload models": lambda kind: kind.uploads_model,
    "only averages": lambda kind: kind.only_averages,
    "exits at clients": lambda kind: kind.has_exits,
}
"""What a method is, in the table of methods."""
DECIDES: dict[str, Mapping[str, Callable[..., Any]]] = {
    "clients.choice": CHOICES,
    "server.order": ORDERS | OF_RUNS,
    "servers.edge.clients": RULES,
    "model.cut.by": CUT_POLICIES,
}
"""Names that decide during a run, by the key that takes them."""
SCENARIO_INTRO = """# Scenario keys

Every key of a scenario file, with its default, its unit and an example. `sfl-sim list schema` prints the same as a JSON
Schema, with which editors complete and check. A dot leads into a section: `train.rounds` in a grid or after `--set` is
the key `rounds` of the section `train`. Keys that do not exist, and values that do not fit, are errors."""
TABLE = "| key and default | what it is |\n|---|---|"
FILTERED = '<div class="filtered" data-ask="{}" markdown="1">'
"""Begins what docs/filter.js lets a reader search; a folded section ends with `FOLDED_END`."""
FOLDED, FOLDED_END = '<details markdown="1"><summary>{}</summary>', "</details>"
COMMANDS_INTRO = """# Commands

What `sfl-sim COMMAND --help` says. `sfl-sim SCENARIO.yaml` is short for `sfl-sim run SCENARIO.yaml`.
With any command, `--debug` shows tracebacks, and `--allow-code` allows a scenario to run your own Python code.
Exit codes: 0 done, 1 failed, 2 bad input, 130 interrupted."""


def scenario_page() -> str:
    """Write the reference of scenarios from their JSON Schema: every key, by section."""
    schema = json_schema({}, choices())
    given = {key: value for key, value in given_keys() if value is not None}  # null is no example
    examples = EXAMPLES | given
    world = ", ".join(f"`{key}`" for key, who in DECIDED.items() if who is Decided.BY_THE_WORLD)
    lines = [SCENARIO_INTRO, "", f"A what-if has no best value of what the world decides: {world}."]
    lines += ["", FILTERED.format("Filter keys: words of the key or of its meaning")]
    by_top: dict[str, list[tuple[str, str, dict[str, Any]]]] = defaultdict(list)
    for name, about, keys in sections_of("", schema, schema):
        by_top[re.split("[.:]", name)[0]].append((name, about, keys))
    for top, sections in by_top.items():
        lines += ["", f"## {top or 'Top level'}", "", sections[0][1]]
        n_keys = sum(len(keys) for _, _, keys in sections)
        of_methods = ", and the options of methods" * (top == "method")
        lines += ["", FOLDED.format(f"{n_keys} key{'s' * (n_keys > 1)}{of_methods}")]
        for name, about, keys in sections:
            lines += ["", f"### {name}", "", about] * (name != top)
            lines += ["", TABLE, *(row_of(name, key, node, schema, examples) for key, node in keys.items())]
            if name == "method":
                lines += ["", *method_lines(method_options())]
        lines += ["", FOLDED_END]
    return "\n".join([*lines, "", "</div>"])


def row_of(section: str, key: str, node: dict[str, Any], schema: dict[str, Any], examples: dict[str, Any]) -> str:
    """Return the row of a key: its name above its default, and what it is above an example."""
    example = example_of(f"{section}.{key}".lstrip("."), node, examples)
    shown = f"<br>For example {example}" * bool(example)
    return f"| `{key}`<br>{default_of(node)} | {what_is(key, node, schema)}{shown} |"


def sections_of(name: str, node: dict[str, Any], schema: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield name, description and keys of a section and of those below it."""
    keys = node["properties"]
    yield name, node.get("description", ""), keys
    for key, child in keys.items():
        for member in members(child, schema):
            if "properties" in member:
                kind = member["properties"].get("kind", {}).get("const")
                path = f"{name}.{key}".lstrip(".")
                yield from sections_of(f"{path}: {kind}" if kind else path, member, schema)


def given_keys() -> Iterator[tuple[str, Any]]:
    """Yield the keys that this site and shipped scenarios give, with their values: tests run them all."""
    for page in sorted(DOCS.rglob("*.md")):
        for block in re.findall(r"^```yaml.*?\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            yield from flat("", yaml.safe_load(block))
    for path in sorted((ROOT / "scenarios").rglob("*.yaml"), reverse=True):
        yield from flat("", yaml.safe_load(path.read_text(encoding="utf-8")))


def flat(name: str, given: Any) -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values of a mapping, sections too; those of a kind also below `section: kind`."""
    if name:
        yield name, given
    if isinstance(given, dict) and "kind" in given:
        yield from flat(f"{name}: {given['kind']}", {key: value for key, value in given.items() if key != "kind"})
    if name == "grid":
        for grid in given if isinstance(given, list) else [given]:
            for key, values in grid.items():
                yield key, values[0] if isinstance(values, list) else values
    elif isinstance(given, dict):
        for key, value in given.items():
            yield from flat(f"{name}.{key}".lstrip("."), value)


def example_of(key: str, node: dict[str, Any], examples: dict[str, Any]) -> str:
    """Return an example of a key: one from a shipped scenario, or else another value that it may have."""
    value = examples.get(key, node.get("default"))
    if "$ref" in node:
        return ""
    if key not in examples:
        if isinstance(value, bool):
            value = not value
        elif allowed := node.get("enum", node.get("anyOf", [{}])[0].get("enum")):
            value = allowed[-1]
    if value is None:
        raise LookupError(f"no example of the scenario key {key}: show it on a page, or in EXAMPLES of from_code.py")
    return code(value)


def default_of(node: dict[str, Any]) -> str:
    """Return the default of a key; sections have those of their keys."""
    default = node.get("default", node.get("const"))
    if "default" not in node and default is None:
        return "required"
    return "see below" if "$ref" in node and isinstance(default, dict) else code(default)


def code(value: Any) -> str:
    """Return a value as it stands in YAML, on one line."""
    plain = str(value) if isinstance(value, Path) else value
    text = yaml.safe_dump(plain, default_flow_style=True, width=10_000).removesuffix("...\n").strip()
    return f"`{text}`".replace("|", "\\|")


def what_is(key: str, node: dict[str, Any], schema: dict[str, Any]) -> str:
    """Return what a key means, its unit, and what it allows."""
    section = schema["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else {}
    about = " ".join(node.get("description", section.get("description", "")).split())
    if not about:
        raise LookupError(f"the scenario key {key} has no description")
    unit = next((unit for end, unit in UNITS.items() if key.endswith(end)), "")
    allowed = dict.fromkeys(value for member in members(node, schema) for value in member.get("enum", []))
    parts = [about, f"Unit: {unit}." if unit else "", f"One of {', '.join(map(code, allowed))}." if allowed else ""]
    return " ".join(filter(None, parts)).replace("|", "\\|")


def method_lines(options: dict[str, Any]) -> Iterator[str]:
    """Yield what the options of each method are, with their defaults."""
    yield "Options that a method adds to this section:\n"
    yield "| option and default | what it is |\n|---|---|"
    for name, schema in options.items():
        for key, node in schema.get("properties", {}).items():
            about = what_is(key, node, schema)
            yield f"| [{name}](../methods/{page_of(name)})<br>`{key}`<br>{default_of(node)} | {about} |"


@cache
def pages_of_methods() -> dict[str, str]:
    """Return the page below docs/methods that each heading is on, with its anchor, by what a name of it would be."""
    pages = {}
    for page in sorted((DOCS / "methods").glob("*.md")):
        for level, heading in re.findall(r"^(##?) (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            anchor = re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-"))
            pages[plain(heading)] = page.name if level == "#" else f"{page.name}#{anchor}"
    return pages


def plain(name: str) -> str:
    """Return the name of a method as scenarios and headings have in common: `KoReA-SFL` is `korea`."""
    return re.sub(r"[-_ ]sf?l$|[-_ ]", "", name.lower())


def page_of(name: str) -> str:
    """Return the page of a method and the anchor on it, from docs/methods."""
    if plain(name) not in pages_of_methods():
        raise LookupError(f"no page in docs/methods has a heading for the method {name}")
    return pages_of_methods()[plain(name)]


def commands_of(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the name of each command, and the command: of a group those below it, as `list methods`."""
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, f"{word} ")
        else:
            yield f"{name}{word}", command


def commands_page() -> str:
    """Write the reference of commands from the command line itself."""
    lines = [COMMANDS_INTRO]
    for name, command in sorted(commands_of(typer.main.get_command(app))):
        lines += ["", f"## sfl-sim {name}", "", command.help or "", "", "| | default | |", "|---|---|---|"]
        for given in command.params:
            is_option = given.param_type_name == "option"
            names = " ".join(f"`{text}`" for text in (given.opts if is_option else [given.name.upper()]))
            default = "" if given.default in (None, False, [], ()) or given.required else code(given.default)
            lines.append(f"| {names} | {default} | {given.help} |")
    return "\n".join(lines)


def notebook_page(path: Path) -> str:
    """Write a notebook as a page: its texts, its code, and the outputs that are stored in it."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += map(_output, cell.get("outputs", []))
    return "\n\n".join(parts)


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {"text/plain": output.get("text")})
    if figure := data.get("application/vnd.plotly.v1+json"):
        drawn = plotly.io.from_json(json.dumps(figure), skip_invalid=True)
        return plotly.io.to_html(drawn, full_html=False, include_plotlyjs=f"../{PLOTLY}")
    if "text/html" in data:
        return re.sub(r"\n+", "\n", "".join(data["text/html"]))
    return f"```text\n{''.join(data['text/plain']).rstrip()}\n```"


def python_page() -> str:
    """Write the reference of the Python interface: directives that mkdocstrings replaces by docstrings."""
    documented = [f"::: {getattr(sfl_sim, name).__module__}.{name}" for name in sfl_sim.__all__]
    return "\n\n".join(["# Python", "What `import sfl_sim` gives.", *documented])


def vocabulary_page() -> str:
    """Write the reference for those who add methods: the same kind of directives."""
    modules = ("ops", "methods.base", "methods.split", "training.steps", "sim.orders")
    intro = "What a [method](../howto/own-method.md) or a scheduling policy of your own is made of."
    return "\n\n".join(
        [
            "# Words for methods of your own",
            intro,
            *(f"::: sfl_sim.{module}" for module in modules),
        ]
    )


def inside_page() -> str:
    """Write the page of everything that has a name."""
    intro = "What a scenario can name, beside [methods](../methods/README.md#pages); `sfl-sim list` prints all of it."
    lines = ["# What is inside", "", intro]
    for kind, names in catalogue().items():
        if kind == "methods":
            continue
        lines += ["", f"## {kind.capitalize()}", "", "| | |", "|---|---|"]
        lines += [f"| `{name}` | {about.splitlines()[0]} |" for name, about in names.items()]
    return "\n".join(lines)


def methods_table() -> str:
    """Write tables of methods, one for each family of the site's menu, from docstrings and traits."""
    lines = [FILTERED.format("Filter methods: words of the name, the description or a trait")]
    for family, pages in families().items():
        named = {name: kind for name, kind in METHODS.items() if page_of(name).partition("#")[0] in pages}
        lines += ["", f"### {family}", "", "| method | what it does |", "|---|---|"] * bool(named)
        for name, kind in named.items():
            about = (inspect.getdoc(kind) or "").partition("\n")[0]
            traits = ", ".join(trait for trait, holds in TRAITS.items() if holds(kind))
            lines.append(f"| [{name}]({page_of(name)}) | {about}<br>*{traits or 'none of the traits'}* |")
    return "\n".join([*lines, "", "</div>"])


def families() -> dict[str, list[str]]:
    """Return the groups of the menu below Methods, each with its pages in docs/methods."""
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    (methods,) = (entry["Methods"] for entry in yaml.safe_load(menu) if "Methods" in entry)
    return {name: [Path(page).name for page in pages] for group in methods[1:] for name, pages in group.items()}


def table_in_words(table: StoredTable) -> str:
    """Describe a stored table: what a row is, and its columns with type, unit and meaning."""
    about = [
        f"A row is {table.row}.",
        f"It stands under `{table.under}`." * bool(table.under),
        f"Only with {table.only}." * bool(table.only),
        f"Besides: {table.further}." * bool(table.further),
    ]
    lines = [f"#### `{table.file}`", "", " ".join(filter(None, about)), ""]
    lines += ["| column | type | what it is |", "|---|---|---|"]
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


def tables_of(kind: FolderKind) -> str:
    """Describe the stored tables of a kind of folder."""
    return "\n\n".join(map(table_in_words, tables(kind).values()))


def known_table(key: str) -> str:
    """Write what each name that a key takes knows when it decides."""
    lines = [f"| `{key}` | knows |", "|---|---|"]
    for name, function in DECIDES[key].items():
        lines.append(f"| `{name}` | {'; '.join(known.value for known in known_by(function)) or 'nothing'} |")
    return "\n".join(lines)


def laws_table() -> str:
    """Write the statements of the laws."""
    return "\n".join(["| law | statement |", "|---|---|", *(f"| {law.number} | {law.statement} |" for law in LAWS)])


def networks_table() -> str:
    """Write how many networks of each family of a library are trained in parts as the whole is."""
    rows = json.loads((ROOT / "benchmarks" / "results" / "models.json").read_text(encoding="utf-8"))["rows"]
    outcomes = ("to the bit", "last bits", "refused", "too slow", "fails", "wrong")
    head = ["library", "networks", "tried", *outcomes]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in rows:
        for group in ((row["library"], row["family"]), ("all", "")):
            counts[group][row["outcome"]] += 1
    of_all = counts.pop(("all", ""))
    for (library, family), count in [*counts.items(), (("all", ""), of_all)]:
        numbers = [count.total(), *(count[outcome] for outcome in outcomes)]
        lines.append(f"| {library} | {family} | " + " | ".join(map(str, numbers)) + " |")
    return "\n".join(lines)


def refused_networks() -> str:
    """Write which networks are refused, too slow or fail, and with which line."""
    rows = json.loads((ROOT / "benchmarks" / "results" / "models.json").read_text(encoding="utf-8"))["rows"]
    refused = [row for row in rows if row["outcome"] in ("refused", "too slow", "fails")]
    lines = (f"| {row['library']} | {row['network']} | {row['says'].replace('|', '')} |" for row in refused)
    return "\n".join(["| library | network | line |", "|---|---|---|", *lines])


PARTS = (
    {"methods": methods_table, "laws": laws_table, "networks": networks_table, "refused networks": refused_networks}
    | {f"what {key} knows": partial(known_table, key) for key in DECIDES}
    | {f"tables of a {kind}": partial(tables_of, kind) for kind in get_args(FolderKind)}
)
"""Parts of pages, by the words that ask for them."""


def with_parts(page: str) -> str:
    """Return the text of a page with the parts that it asks for, in place of the lines that ask."""
    return re.sub(r"^.*<!-- from the code: (.+) -->$", lambda asked: PARTS[asked[1]](), page, flags=re.MULTILINE)
