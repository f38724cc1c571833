"""Damaged tables: the shipped profiles, and files of a user's own, in every place that takes one."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from damage import HOME, NUMBERS, WORDS, mangled
from hypothesis import strategies as st

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
