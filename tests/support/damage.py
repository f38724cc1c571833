"""Strategies that damage what a user hands in, scenarios as trees and as text, tables, and JSON; and who judges.

Any input has exit code 0, or 2 with one line; in time, and in little memory.
"""

import contextlib
import copy
import io
import resource
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from sfl_sim.build.setup import forget
from sfl_sim.cli import main
from sfl_sim.methods import METHODS
from sfl_sim.scenario import yaml_text
from sfl_sim.scenario.schema import Schema, json_schema, members
from sfl_sim.scenario.sections import Scenario

HOME = Path(__file__).parents[2]
SCENARIOS = {path.relative_to(HOME).as_posix(): path for path in sorted((HOME / "scenarios").rglob("*.yaml"))}

NUMBERS = [
    0, 1, 2, 3, 1000, 10**6, 10**9, -1, 0.5, 1.0, -0.5, 1e-308, 5e-324, 1e308, -1e308, 1e16, 2**31 - 1, 2**31, 2**63,
    -(2**63), 10**30, -(10**30), 10**99, float("nan"), float("inf"), float("-inf"),
]  # fmt: skip
WORDS = [
    "", " ", "\n", "a\nb: c", "\t", "\0", "\ud800", "\u202eevil", "\u200b", "\ufeff", "٣", "𝟙", "e\u0301", "x" * 5000,
    "null", "1e3", "0x10", "1:30", "~", "all", "inf", "nan", "true", "../..", "/", ".", "~nobody/x", "/dev/null",
    "/dev/zero", "C:\\x", "no.such:thing", ":", "a:", ":b", "a:b:c", "package..module:x", "<script>alert(1)</script>",
    "%s%n", "{x}",
]  # fmt: skip
SCALARS = st.sampled_from([None, True, False, *NUMBERS, *WORDS]) | st.integers() | st.floats() | st.text(max_size=5)


def _nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


CONTAINERS = st.sampled_from(
    [
        [],
        {},
        [[]],
        [None],
        [1, 2],
        [1, "a"],
        {"kind": None},
        {"kind": []},
        {"kind": "x"},
        {"by": "client", "values": []},
        {1: 2},
        {None: 1},
        {1.5: {True: None}},
        {"": ""},
        {"a.b": 1},
        [{}] * 50,
        list(range(300)),
        {"x" * 2000: 1},
        _nested(20),
        _nested(40),
        _nested(100),
    ]
).map(copy.deepcopy)
JUNK = SCALARS | CONTAINERS


LIGHT = {"mobilenet_v1": "cnn8", "mobilenet_v2": "lenet5", "resnet18": "resnet_small", "resnet34": "resnet_small"}


@cache
def small_scenarios() -> list[dict[str, Any]]:
    """The shipped scenarios on little made-up data, with light networks, few clients, and the first points of grids."""
    return [_small(yaml.safe_load(path.read_text())) for path in SCENARIOS.values()]


def _small(tree: dict[str, Any]) -> dict[str, Any]:
    data = tree.get("data", {})
    if data.get("name", "digits") != "digits":
        shape = [1, 28, 28] if data["name"] == "fashion_mnist" else [3, 32, 32]
        kept = {key: data[key] for key in ("partition", "test") if key in data}
        kept.get("partition", {}).pop("min_size", None)
        tree["data"] = {"name": "synthetic", "shape": shape, "n_labels": 10, "samples": 2000, **kept}
        if kept.get("partition", {}).get("kind") == "dirichlet":
            kept["partition"]["min_size"] = 0
    if (name := tree["model"]["name"]) in LIGHT:
        tree["model"] = {"name": LIGHT[name], "cut": 1}
    if tree.get("clients", {}).get("count", 0) > 20:
        tree["clients"]["count"] = 20
    grid = tree.get("grid", {})
    tree["grid"] = grid[:2] if isinstance(grid, list) else {key: values[:2] for key, values in grid.items()}
    return tree | {"repeats": 1}


@cache
def known_keys() -> list[str]:
    """The dotted keys that a scenario may have, those of all kinds of sections and the methods' options."""
    schema = json_schema()
    options = {f"method.{name}" for method in METHODS.values() for name in method.Options.model_fields}
    return sorted({*_keys_below(schema, schema, ""), *options})


def _keys_below(node: Schema, schema: Schema, prefix: str) -> set[str]:
    found = set()
    for member in members(node, schema):
        for key, below in member.get("properties", {}).items():
            found |= {prefix + key} | _keys_below(below, schema, f"{prefix}{key}.")
    return found


@cache
def known_words() -> list[Any]:
    """Values that some shipped scenario has somewhere, and all defaults."""
    trees = [*small_scenarios(), Scenario().model_dump()]
    leaves = [value for tree in trees for path in paths(tree) if not isinstance(value := at(tree, path), dict)]
    return list({repr(value): value for value in leaves}.values())


Path_ = tuple[Any, ...]


def paths(tree: Any, prefix: Path_ = ()) -> list[Path_]:
    """The ways to all values in a tree, containers included, but for the whole."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path for key, value in items for path in ((*prefix, key), *paths(value, (*prefix, key)))]


def at(tree: Any, path: Path_) -> Any:
    for step in path:
        tree = tree[step]
    return tree


def put(tree: Any, path: Path_, value: Any) -> None:
    """Set what can be set; sections that are not there are made."""
    *above, last = path
    for step in above:
        if isinstance(tree, dict) and not isinstance(tree.get(step), dict | list):
            tree[step] = {}
        elif isinstance(tree, list) and step not in range(len(tree)):
            return
        tree = tree[step]
    if isinstance(tree, dict) or (isinstance(tree, list) and isinstance(last, int) and 0 <= last < len(tree)):
        tree[last] = value


@st.composite
def damaged(draw: st.DrawFn, trees: st.SearchStrategy[Any], keys: st.SearchStrategy[str]) -> Any:
    """A tree after some blows, most often one or two."""
    tree = copy.deepcopy(draw(trees))
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 2, 3, 6]))):
        ways = paths(tree)
        if not ways:
            return draw(JUNK)
        path = draw(st.sampled_from(ways))
        match draw(
            st.sampled_from(
                ["junk", "known", "known", "extreme", "extreme", "move", "drop", "rename", "wrap", "add", "whole"]
            )
        ):
            case "junk":
                put(tree, path, draw(JUNK))
            case "known":
                put(tree, tuple(draw(keys).split(".")), draw(JUNK | st.sampled_from(known_words()).map(copy.deepcopy)))
            case "extreme":
                numbers = [way for way in ways if isinstance(at(tree, way), int | float)] or ways
                put(tree, draw(st.sampled_from(numbers)), draw(st.sampled_from(NUMBERS)))
            case "move":
                put(tree, path, copy.deepcopy(at(tree, draw(st.sampled_from(ways)))))
            case "drop":
                del at(tree, path[:-1])[path[-1]]
            case "rename" if isinstance(home := at(tree, path[:-1]), dict):
                home[draw(SCALARS | keys)] = home.pop(path[-1])
            case "wrap":
                inner = at(tree, path)
                put(
                    tree,
                    path,
                    copy.deepcopy(draw(st.sampled_from([[inner], {"x": inner}, {path[-1]: inner}, [inner] * 3]))),
                )
            case "add":
                put(tree, (*path, draw(SCALARS)), draw(JUNK))
            case "whole" if draw(st.integers(0, 9)) == 0:
                return draw(JUNK)
    return tree


TOKENS = [
    b"\t", b"\0", b"\n", b"\r", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xe2\x80\xae", b"\xc2\x85", b"\x1b[31m",
    b"- ", b"? ", b": ", b"{", b"[", b"}", b"]", b"|\n", b">\n", b"'", b'"', b"#", b"%YAML 9.9\n", b"---\n", b"...\n",
    b"&a ", b"*a ", b"<<: *a\n", b"<<: [*a, *a]\n", b"!!python/object/apply:os.system [exit]", b"!!binary ",
    b"!!set ", b"!!int ", b"!!float ", b"!!bool ", b"!!timestamp ", b"!!omap ", b"!!null ", b"!<x> ", b"! ", b"=",
    b"1:" * 60, b"9" * 5000, b"0x" + b"f" * 5000, b"[" * 2000, b"- " * 2000, b"a: {" * 2000, b".inf", b"-.inf",
    b".nan", b"1e999", b"@", b"`", b",", b";", b'"\\ud800"', b'"\\0"',
]  # fmt: skip


@st.composite
def mangled(draw: st.DrawFn, texts: st.SearchStrategy[bytes]) -> bytes:
    """Bytes after some blows."""
    text = draw(texts)
    for _ in range(draw(st.integers(1, 4))):
        where = draw(st.integers(0, len(text)))
        match draw(st.sampled_from(["token", "token", "token", "flip", "cut", "double", "shuffle", "noise"])):
            case "token":
                text = text[:where] + draw(st.sampled_from(TOKENS)) + text[where:]
            case "flip" if where < len(text):
                text = text[:where] + bytes([draw(st.integers(0, 255))]) + text[where + 1 :]
            case "cut":
                text = text[:where]
            case "double":
                text = text[:where] + text
            case "shuffle":
                lines = text.splitlines(keepends=True)
                text = b"".join(draw(st.permutations(lines[:20]))) + b"".join(lines[20:])
            case "noise":
                text = text[:where] + draw(st.binary(max_size=20)) + text[where:]
    return text


def written(tree: Any) -> bytes:
    """A tree as the text of a scenario."""
    return yaml_text.write(tree).encode()


def scenario_trees() -> st.SearchStrategy[Any]:
    return damaged(st.sampled_from(small_scenarios()), st.sampled_from(known_keys()))


def scenario_texts() -> st.SearchStrategy[bytes]:
    return mangled(
        st.sampled_from([written(tree) for tree in small_scenarios()]) | st.builds(written, scenario_trees())
    )


HEADER_ROWS = 25
PLACES = {
    "devices": "compute: {profile: FILE}",
    "costs": "compute: {cost: FILE}",
    "network": "network: {profile: FILE}",
    "network/traces": "network: {trace: FILE}",
    "power": "power: {compute_w: 1, radio: FILE}",
    "availability": "availability: {profile: FILE, lost: wait}",
    "shared": "network: {shared: {file: FILE}}",
}
OWN = {
    "availability": "client,start_s,end_s,period_s\na,0,10,100\na,20,30,100\nb,5,50,60\n",
    "shared": "from,to,capacity_bps\nclient,ap,1e6\nap,server,1e7\n",
    "arrivals": "time_s,client\n0,0\n1.5,1\n",
}
NUMERALS = st.sampled_from(
    [*map(str, NUMBERS), "", "0x10", "1_000", "1,5", "1 e3", "٣", "+1", "--1", "1e999", ".", *WORDS]
)


@cache
def shipped() -> list[tuple[str, str]]:
    """Kind and first rows of every profile."""
    found = list(OWN.items())
    for kind in PLACES:
        for path in sorted((HOME / "profiles" / kind).glob("*.csv")):
            lines = path.read_text().splitlines(keepends=True)
            found.append((kind, "".join(lines[:HEADER_ROWS] + lines[-1:])))
    return found


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, bytes]:
    """The kind of a table, and the bytes of its file."""
    kind, text = draw(st.sampled_from(shipped()))
    lines = text.splitlines()
    for _ in range(draw(st.integers(0, 3))):
        row = draw(st.integers(0, len(lines) - 1))
        cells = lines[row].split(",")
        cells[draw(st.integers(0, len(cells) - 1))] = draw(NUMERALS)
        lines[row] = ",".join(cells)
    content = "\n".join(lines).encode(errors="surrogatepass")
    return kind, draw(mangled(st.just(content))) if draw(st.booleans()) else content


def scenario_with(kind: str, file: Path) -> str:
    """A small scenario that uses it."""
    if kind == "arrivals":
        served = f"serving: {{arrivals: {{kind: trace, file: {file}}}}}"
        return f"{served}\nmethod: {{name: multiexit}}\nclients: {{count: 3}}\n"
    return f"clients: {{count: 3, {PLACES[kind].replace('FILE', str(file))}}}\nmethod: {{name: splitfed_v1}}\n"


CPU_S, WALL_S = 30, 300
MEMORY_BYTES = 2 * 2**30
MAX_LINE = 3000


class Hangs(BaseException):
    """A call has taken too long."""


def told(*arguments: Any) -> str | None:
    """Call the command in this process; the one line in which bad input was refused, or None if it was fine."""
    code, err = 0, io.StringIO()
    forget()  # a process of its own would know nothing of earlier files
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()), _bounded():
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
    line = err.getvalue()
    assert code in (0, 2), line
    if code == 0:
        return None
    assert line.startswith("sfl-sim: "), line
    assert line.removesuffix("\n").isprintable(), line
    assert len(line) < MAX_LINE, line
    return line


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hangs(f"longer than {CPU_S} s of computing, or {WALL_S} s")

    before = {number: signal.signal(number, ring) for number in (signal.SIGPROF, signal.SIGALRM)}
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as pages:
        in_use = int(pages.read().split()[0]) * resource.getpagesize()
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    signal.alarm(WALL_S)
    resource.setrlimit(resource.RLIMIT_AS, (in_use + MEMORY_BYTES, limits[1]))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        for number, handler in before.items():
            signal.signal(number, handler)
