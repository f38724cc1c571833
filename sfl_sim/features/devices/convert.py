"""Measurements as profiles: links, devices and availability as others publish them, and as own tools measure them."""

import pickle
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sfl_sim.errors import ScenarioError, in_one_line
from sfl_sim.features.devices.fit import REFERENCE_MACS
from sfl_sim.json_text import parsed_json
from sfl_sim.store.files import write_file
from sfl_sim.system.profiles import MAX_ROWS, FloatArray

KEY = "convert"
MADE = "by sfl-sim devices convert"
"""What the head of its tables says."""
MAHIMAHI_BYTES, MAHIMAHI_BIN_S = 1504, 1.0
"""Bytes of a packet in Mahimahi's traces, and the seconds over which packets are averaged."""
FCC_S = 5.0
"""Seconds of one row of the FCC's raw data, as Pensieve takes them."""
FCC_COLUMNS = (
    "unit_id", "dtime", "target", "address", "fetch_time", "bytes_total", "bytes_sec", "bytes_sec_interval",
    "warmup_time", "warmup_bytes", "sequence", "threads", "successes", "failures", "location_id",
)  # fmt: skip
"""Columns of older files, which name none."""
DAY_S = 86400.0


UNREADABLE = (ArithmeticError, AttributeError, EOFError, LookupError, OSError, RecursionError, TypeError, UserWarning,
              ValueError, pickle.UnpicklingError)  # fmt: skip
"""What reading raises of a file of another form."""


class ConvertedTable(NamedTuple):
    """A table that was made: the scenario key that takes it, its name, its rows, and what of a file is not in them."""

    key: str
    name: str
    rows: pd.DataFrame
    left_out: str = ""


def convert(form: str, files: Sequence[Path], out: Path) -> list[ConvertedTable]:
    """Read files of a form of `FORMS`, and write what they hold as profiles to a folder, one CSV file each.

    Raises ScenarioError if a file cannot be read as this form; nothing is written then.
    """
    found: list[ConvertedTable] = []
    for part in FORMS[form].together(files):
        try:
            found += FORMS[form].read(*part)
        except UNREADABLE as error:
            if isinstance(error, ScenarioError):
                raise
            problem = f"cannot be read as {form}: {in_one_line(str(error))}"
            raise ScenarioError(problem, key=KEY, file=str(part[0])) from error
    if not found:
        raise ScenarioError(f"nothing of the form {form} in it", key=KEY, file=str(files[0]))
    names = [each.name for each in found]
    if outside := next((name for name in names if Path(name).name != name or "\\" in name), None):
        raise ScenarioError("cannot name a file", key=KEY, file=str(files[0]), found=outside, allowed="no slashes")
    if doubled := next((name for name, times in Counter(names).items() if times > 1), None):
        raise ScenarioError("two files would give a table of this name", key=KEY, found=doubled)
    if {(out / f"{name}.csv").resolve() for name in names} & {file.resolve() for file in files}:
        raise ScenarioError("would replace what is read", key="--out", found=str(out), allowed="another folder")
    for target in (out / f"{name}.csv" for name in names):
        if target.exists() and MADE not in target.read_text(encoding="utf-8", errors="replace")[:1000]:
            problem = "would replace a file of yours"
            raise ScenarioError(problem, key="--out", found=str(target), allowed="another folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ScenarioError(f"cannot be made: {error.strerror}", key="--out", found=str(out)) from error
    sources = ", ".join(in_one_line(path.name) for path in files[:3]) + (", ..." if len(files) > 3 else "")
    for each in found:
        about = "; ".join(filter(None, [FORMS[form].about, each.left_out]))
        header = f"# source: {sources}\n# derived: {MADE} {form}: {about}\n"
        write_file(out / f"{each.name}.csv", (header + each.rows.to_csv(index=False)).encode())
    return found


def _trace(name: str, lasts_s: FloatArray, up_bps: FloatArray, down_bps: FloatArray) -> ConvertedTable:
    """Make a trace of pieces, each with its seconds and its rates; the first piece's rates close it."""
    counts = (lasts_s > 0) & np.isfinite(up_bps) & np.isfinite(down_bps)
    lasts_s, up_bps, down_bps = lasts_s[counts], up_bps[counts], down_bps[counts]
    if not (up_bps > 0).any() or not (down_bps > 0).any() or min(up_bps.min(), down_bps.min()) < 0:
        raise ValueError("needs rates of 0 and above, and one above 0 in each direction")
    rows = {
        "time_s": np.concatenate([[0.0], np.cumsum(lasts_s)]).round(6),
        "uplink_bps": np.append(up_bps, up_bps[0]).round(3),
        "downlink_bps": np.append(down_bps, down_bps[0]).round(3),
    }
    return ConvertedTable("clients.network.trace", name or "trace", pd.DataFrame(rows))


def _numbers(file: Path) -> FloatArray:
    """Read rows of numbers (rows, columns)."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of an empty file
        return np.asarray(np.loadtxt(file, ndmin=2))


def read_hsdpa(log: Path) -> Iterator[ConvertedTable]:
    """Read a log of Riiser et al.: Unix time, ms, place, bytes and ms since the row before."""
    rows = _numbers(log)
    lasts_s = rows[:, 5] / 1000
    rates_bps = 8 * rows[:, 4] / np.where(lasts_s > 0, lasts_s, np.inf)
    yield _trace(log.stem, lasts_s, rates_bps, rates_bps)


def read_pensieve(cooked: Path) -> Iterator[ConvertedTable]:
    """Read Pensieve's cooked form: seconds, and Mbit/s since the row before; a third column is a delay in some copies.

    A trace has no delays, and these have no unit, so their median is told.
    """
    times_s, rates_mbps, *more = _numbers(cooked).T
    told = "column 3 is left out (median {:g}); if it is a delay, set clients.network.latency_s"
    trace = _trace(cooked.stem, np.diff(times_s), 1e6 * rates_mbps[1:], 1e6 * rates_mbps[1:])
    yield trace._replace(left_out=told.format(np.median(more[0])) if more else "")


def read_mahimahi(up: Path, down: Path) -> Iterator[ConvertedTable]:
    """Read Mahimahi's lists of ms at which a packet of 1504 bytes may pass; the shorter list gives the period."""
    lists_s = [_numbers(path)[:, 0] / 1000 for path in (up, down)]
    period_s = min(times_s[-1] for times_s in lists_s)
    if not 0 < period_s <= MAX_ROWS * MAHIMAHI_BIN_S:
        raise ValueError(f"lasts {period_s:g} s, and a trace has up to {MAX_ROWS} rows of {MAHIMAHI_BIN_S:g} s")
    edges_s = np.append(np.arange(0, period_s, MAHIMAHI_BIN_S), period_s)
    lasts_s = np.diff(edges_s)
    ups, downs = (8 * MAHIMAHI_BYTES * np.histogram(times_s, edges_s)[0] / lasts_s for times_s in lists_s)
    yield _trace(_without_direction(up), lasts_s, ups, downs)


def read_fcc(*tables: Path) -> Iterator[ConvertedTable]:
    """Read the FCC's raw tables of downloads (httpgetmt, webget) and uploads (httppostmt): a trace for each unit."""
    found: dict[str, list[pd.DataFrame]] = defaultdict(list)
    for table in tables:
        with table.open(encoding="utf-8") as file:
            first_line = file.readline()
        names = None if "unit_id" in first_line else FCC_COLUMNS[: first_line.count(",") + 1]
        rows = pd.read_csv(table, names=names)
        rates = rows["bytes_sec"]
        if "bytes_sec_interval" in rows.columns:
            rates = rows["bytes_sec_interval"].where(rows["bytes_sec_interval"] > 0, rates)
        found["up" if "post" in table.stem else "down"].append(
            pd.DataFrame({"unit": rows["unit_id"], "bps": 8.0 * rates})
        )
    by_direction: dict[str, dict[Any, FloatArray]] = {
        direction: {unit: rates.to_numpy(float) for unit, rates in pd.concat(parts).groupby("unit")["bps"]}
        for direction, parts in found.items()
    }
    first, *_ = by_direction.values()
    ups, downs = by_direction.get("up", first), by_direction.get("down", first)
    for unit in sorted(ups.keys() & downs.keys()):
        n = min(len(ups[unit]), len(downs[unit]))
        up, down = ups[unit][:n], downs[unit][:n]
        if n > 1 and up.max() > 0 and down.max() > 0:
            yield _trace(f"unit_{unit}", np.full(n, FCC_S), up, down)


def read_ucc_5g(log: Path) -> Iterator[ConvertedTable]:
    """Read a log of G-NetTrack Pro, as UCC's 4G and 5G data: DL_bitrate and UL_bitrate in kbit/s, at each second."""
    rows = pd.read_csv(log, na_values="-")
    rows["Timestamp"] = pd.to_datetime(rows["Timestamp"].astype(str), format="%Y.%m.%d_%H.%M.%S")
    rates = 1000 * rows.groupby("Timestamp")[["UL_bitrate", "DL_bitrate"]].mean().dropna()
    lasts_s = np.append(np.diff(rates.index).astype("timedelta64[ms]").astype(float) / 1000, 1.0)
    yield _trace(log.stem, lasts_s, rates["UL_bitrate"].to_numpy(float), rates["DL_bitrate"].to_numpy(float))


def read_nyu_mets(log: Path) -> Iterator[ConvertedTable]:
    """Read a log of NYU-METS: at each second a rate, and its unit, which differs from row to row.

    Its tables of 2020 have other columns behind the rate and no units; their rates are taken for Mbit/s.
    """
    rows = pd.read_csv(log, header=None)
    rates_bps = 1e6 * rows[0].to_numpy(float)
    if not pd.api.types.is_numeric_dtype(rows[1]):
        units_bps = rows[1].map(NYU_METS_UNITS_BPS)
        if units_bps.isna().any():
            raise ValueError(f"needs units, one of {', '.join(NYU_METS_UNITS_BPS)}")
        rates_bps = rows[0].to_numpy(float) * units_bps.to_numpy(float)
    yield _trace(log.name.partition(".")[0], np.ones(len(rates_bps)), rates_bps, rates_bps)


NYU_METS_UNITS_BPS = {"bits/sec": 1.0, "Kbits/sec": 1e3, "Mbits/sec": 1e6, "Gbits/sec": 1e9}
"""Units that iperf writes."""


def read_mobiperf(*files: Path) -> Iterator[ConvertedTable]:
    """Read MobiPerf's JSON: the mean rate of each TCP test, and of these quantiles by direction, every 0.05."""
    rates_bps: dict[bool, list[float]] = defaultdict(list)
    for file in files:
        for test in _json(file):
            results = test.get("tcp_speed_results", (test.get("values") or {}).get("tcp_speed_results"))
            kbps = parsed_json(results, file) if isinstance(results, str) else results
            if kbps:
                goes_up = str((test.get("parameters") or {}).get("dir_up", "")).lower() == "true"
                rates_bps[goes_up].append(1000 * float(np.mean([float(each) for each in kbps])))
    either = next(iter(rates_bps.values()), [])
    if len(either) > 1:
        yield _links("links", rates_bps.get(True, either), rates_bps.get(False, either), 0.05)


def read_iperf3(*files: Path) -> Iterator[ConvertedTable]:
    """Read iperf3's JSON (--json, --json-stream): bit/s of each interval, up from a client, down with --reverse.

    Where intervals of two directions end at other times, each piece has the rates of the intervals around it.
    """
    found: dict[str, tuple[FloatArray, FloatArray]] = {}
    for file in dict.fromkeys(files):
        for direction, sums in _iperf3_sums(file).items():
            if direction in found:
                raise ValueError(f"{', '.join(path.name for path in files)}: both go {direction}; one needs --reverse")
            ends_s = np.cumsum([float(each["seconds"]) for each in sums])
            found[direction] = ends_s, np.array([float(each["bits_per_second"]) for each in sums])
    if not found:
        return
    ups, downs = (found.get(direction, next(iter(found.values()))) for direction in ("up", "down"))
    ends_s = np.union1d(ups[0], downs[0])
    ends_s = ends_s[ends_s <= min(ups[0][-1], downs[0][-1])]
    up_bps, down_bps = (rates[np.searchsorted(own_s, ends_s)] for own_s, rates in (ups, downs))
    yield _trace(_without_direction(files[0]), np.diff(ends_s, prepend=0.0), up_bps, down_bps)


def _iperf3_sums(file: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the sums over streams of each interval, by direction, without those that --omit leaves out."""
    found = _json(file)
    events = [(each["event"], each["data"]) for each in found if "event" in each]
    told = next((each for each in found if "intervals" in each), {})
    start = next((data for event, data in events if event == "start"), told.get("start", {}))
    intervals = [data for event, data in events if event == "interval"] or told.get("intervals", [])
    error = next((data for event, data in events if event == "error"), told.get("error"))
    if error and not intervals:
        raise ValueError(f"iperf3 says: {error}")
    goes_down = bool(start.get("test_start", {}).get("reverse"))
    by_name = {"sum": "down" if goes_down else "up", "sum_bidir_reverse": "up" if goes_down else "down"}
    sums = {
        direction: [each[name] for each in intervals if name in each and not each[name].get("omitted")]
        for name, direction in by_name.items()
    }
    return {direction: each for direction, each in sums.items() if each}


SPEEDTEST_CLI = ("server id", "sponsor", "server name", "timestamp", "distance", "ping", "download", "upload", "share",
                 "ip address")  # fmt: skip
"""Columns of speedtest-cli, which names them only if it is asked."""


SPEEDTEST_UNITS = {
    "avg_d_kbps": (1000.0, "avg_u_kbps", "avg_d_kbps"),
    "download bytes": (8.0, "upload", "download"),
    "sponsor": (1.0, "upload", "download"),
}
"""By a column that tells forms of CSV apart: bit/s in a unit of its rates, and the columns of up and down."""


def read_speedtest(*files: Path) -> Iterator[ConvertedTable]:
    """Read tests as JSON or CSV: of Ookla's program (bytes/s), of speedtest-cli (bit/s), of Ookla's tiles (kbit/s).

    Tests that failed in a direction are left out; a tile counts once.
    """
    tests = pd.concat([_speed_tests(file) for file in files])
    tests = tests[(tests["up"] > 0) & (tests["down"] > 0)]
    if len(tests):
        yield _links("links", tests["up"].tolist(), tests["down"].tolist(), 0.05)


def _speed_tests(file: Path) -> pd.DataFrame:
    """Return a row of bit/s, `up` and `down`, for each test in a file."""
    text = file.read_text(encoding="utf-8").strip()
    if text[:1] in ("{", "["):
        pairs = [(each["upload"], each["download"]) for each in _json(file) if {"upload", "download"} <= each.keys()]
        rates = [[8 * one["bandwidth"] if isinstance(one, dict) else one for one in pair] for pair in pairs]
        return pd.DataFrame(rates, columns=["up", "down"], dtype=float)
    has_names = "download" in (first := text.partition("\n")[0].lower()) or "_kbps" in first
    rows = pd.read_csv(file, names=None if has_names else [*SPEEDTEST_CLI])
    rows.columns = rows.columns.str.strip().str.lower()
    for mark, (factor, up, down) in SPEEDTEST_UNITS.items():
        if {mark, up, down} <= {*rows.columns}:
            return pd.DataFrame({"up": factor * rows[up], "down": factor * rows[down]}, dtype=float)
    raise ValueError(f"needs the columns of a known speed test: {', '.join(map(str, SPEEDTEST_UNITS))}, ...")


def _json(file: Path) -> list[dict[str, Any]]:
    text = file.read_text(encoding="utf-8")
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    try:
        found = parsed_json(text, file)
    except ScenarioError as error:
        if len(lines) == 1 or not lines[0][1].rstrip().endswith("}"):
            raise
        error.line = None
        found = [parsed_json(line, file, number) for number, line in lines]  # one object a line
    if isinstance(found, list):
        return found
    return list(found.values()) if all(isinstance(value, dict) for value in found.values()) else [found]


def _links(name: str, up_bps: Sequence[float], down_bps: Sequence[float], step: float) -> ConvertedTable:
    grid = np.linspace(0, 1, round(1 / step) + 1)
    rows = {
        "quantile": grid.round(4),
        "uplink_bps": np.quantile(up_bps, grid).round(1),
        "downlink_bps": np.quantile(down_bps, grid).round(1),
    }
    return ConvertedTable("clients.network.profile", name, pd.DataFrame(rows))


class _OnlyData(pickle.Unpickler):
    """Reads a pickle of numbers, texts, lists and mappings; whatever would call something is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, and only plain data are read")


def _unpickled(file: Path) -> dict[Any, dict[str, Any]]:
    with file.open("rb") as content:
        found = _OnlyData(content).load()
    if not isinstance(found, dict):
        raise TypeError("holds no mapping of clients")
    return found


def read_fedscale_capacity(file: Path) -> Iterator[ConvertedTable]:
    """Read FedScale's client_device_capacity: ms an image, for MobileNet-V2 we assume, and kbit/s both ways."""
    clients = _unpickled(file)
    frames_ms = [float(client["computation"]) for client in clients.values()]
    rows = {"device": [f"client {key}" for key in clients], "ms_per_frame": frames_ms, "reference_macs": REFERENCE_MACS}
    yield ConvertedTable("clients.compute.profile", "devices", pd.DataFrame(rows))
    rates_bps = [1000 * float(client["communication"]) for client in clients.values()]
    yield _links("links", rates_bps, rates_bps, 0.01)


def read_fedscale_behaviour(file: Path) -> Iterator[ConvertedTable]:
    """Read FedScale's client_behave_trace: a client is there from each `active` to the next `inactive`."""
    rows: list[tuple[Any, float, float, float]] = []
    for client, trace in _unpickled(file).items():
        period_s = float(trace["finish_time"])
        stays = zip(trace["active"], trace["inactive"], strict=False)
        rows += [(client, start_s, min(end_s, period_s), period_s) for start_s, end_s in stays if start_s < end_s]
    yield _availability(rows)


def read_flash(file: Path) -> Iterator[ConvertedTable]:
    """Read FLASH's states: a client is there while it charges, is on Wi-Fi, and its screen is off or locked.

    Seconds count from the midnight before its first message, and its period is whole days.
    """
    rows: list[tuple[Any, float, float, float]] = []
    for client, record in parsed_json(file.read_text(encoding="utf-8"), file).items():
        messages = [line.split("\t")[:2] for line in record["messages"].splitlines() if "\t" in line]
        if not messages:
            continue
        times = pd.to_datetime([at for at, _ in messages])
        order = np.argsort(times, kind="stable")
        seconds = ((times - times.min().normalize()) / pd.Timedelta(seconds=1)).to_numpy(float)
        period_s = DAY_S * float(np.ceil(seconds.max() / DAY_S) or 1)
        state = {"off": False, "locked": False, "charges": False, "wifi": False}
        since_s: float | None = None
        for place in order.tolist():
            state |= FLASH_STATES.get(messages[place][1].strip(), {})
            there = (state["off"] or state["locked"]) and state["charges"] and state["wifi"]
            if there and since_s is None:
                since_s = seconds[place]
            elif not there and since_s is not None:
                rows.append((client, since_s, seconds[place], period_s))
                since_s = None
        if since_s is not None:
            rows.append((client, since_s, float(seconds.max()), period_s))
    yield _availability(rows)


FLASH_STATES = {
    "screen_off": {"off": True}, "screen_on": {"off": False}, "screen_lock": {"locked": True},
    "screen_unlock": {"locked": False}, "battery_charged_on": {"charges": True},
    "battery_charged_off": {"charges": False}, "wifi": {"wifi": True},
    **{network: {"wifi": False} for network in ("Unknown", "2G", "3G", "4G", "5G")},
}  # fmt: skip
"""What a message says of a phone."""


def _availability(rows: Sequence[tuple[Any, float, float, float]]) -> ConvertedTable:
    table = pd.DataFrame(rows, columns=["client", "start_s", "end_s", "period_s"])
    return ConvertedTable("clients.availability.profile", "availability", table[table["end_s"] > table["start_s"]])


def _alone(files: Sequence[Path]) -> list[tuple[Path, ...]]:
    return [(file,) for file in files]


def _as_one(files: Sequence[Path]) -> list[tuple[Path, ...]]:
    return [tuple(files)]


def _in_pairs(files: Sequence[Path]) -> list[tuple[Path, ...]]:
    """Pair the files NAME.up and NAME.down, or NAME_up and NAME_down, with their ending; one alone stands for both."""
    pairs: dict[str, dict[str, Path]] = defaultdict(dict)
    for file in files:
        text = file.name.removesuffix(".txt").removesuffix(".csv").removesuffix(".com").removesuffix(".json")
        pairs[_without_direction(file)]["down" if text.endswith("down") else "up"] = file
    return [
        (pair.get("up", next(iter(pair.values()))), pair.get("down", next(iter(pair.values()))))
        for pair in pairs.values()
    ]


def _without_direction(file: Path) -> str:
    name = file.name
    for end in (".txt", ".csv", ".com", ".json", "up", "down", ".", "_", "-"):
        name = name.removesuffix(end)
    return name


class Form(NamedTuple):
    """A published form.

    Attributes:
        read: what reads one group of files.
        together: makes groups of files that belong together.
        about: what was done, for the head of the tables.
    """

    read: Callable[..., Iterator[ConvertedTable]]
    together: Callable[[Sequence[Path]], list[tuple[Path, ...]]]
    about: str


FORMS = {
    "hsdpa": Form(read_hsdpa, _alone, "bytes over the time since the row before; the downlink stands for both"),
    "pensieve": Form(read_pensieve, _alone, "Mbit/s since the row before; the one rate stands for both directions"),
    "mahimahi": Form(read_mahimahi, _in_pairs, "packets of 1504 bytes, averaged over 1 s"),
    "fcc": Form(read_fcc, _as_one, "rows of a unit one after another, 5 s each"),
    "ucc_5g": Form(read_ucc_5g, _alone, "kbit/s, each row until the next; rows without a rate left out"),
    "nyu_mets": Form(read_nyu_mets, _alone, "the rate of each second; the one rate stands for both directions"),
    "mobiperf": Form(read_mobiperf, _as_one, "quantiles of the mean rates of TCP tests, by direction"),
    "iperf3": Form(read_iperf3, _in_pairs, "bit/s of each interval; a single direction stands for both"),
    "speedtest": Form(
        read_speedtest, _as_one, "quantiles by direction of bytes/s (Ookla), bit/s (speedtest-cli) or kbit/s (tiles)"
    ),
    "fedscale_capacity": Form(
        read_fedscale_capacity, _alone, "ms an image taken for MobileNet-V2's; one rate for both directions"
    ),
    "fedscale_behaviour": Form(read_fedscale_behaviour, _alone, "from each active to the next inactive"),
    "flash": Form(read_flash, _alone, "while charging, on Wi-Fi, and locked or with the screen off"),
}
"""Forms by the names that `sfl-sim devices convert` takes."""
