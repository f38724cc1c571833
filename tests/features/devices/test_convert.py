"""Measurements in the forms in which others publish them become profiles that a scenario can name."""

import gzip
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from command import sfl_sim

from sfl_sim.errors import ScenarioError
from sfl_sim.features.devices.convert import FORMS, convert
from sfl_sim.rng import stream
from sfl_sim.scenario.optional_sections import Availability
from sfl_sim.scenario.sections import Compute, NetworkSection
from sfl_sim.system.availability import draw_presence
from sfl_sim.system.devices import draw_devices
from sfl_sim.system.network import draw_links


def made(form: str, folder: Path, **files: str | bytes) -> dict[str, pd.DataFrame]:
    """Convert files of these contents; gives the tables by name."""
    paths = []
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        paths.append(path)
    found = convert(form, paths, folder / "out")
    return {each.name: pd.read_csv(folder / "out" / f"{each.name}.csv", comment="#") for each in found}


def pieces(trace: pd.DataFrame) -> list[tuple[float, float, float]]:
    return list(trace.itertuples(index=False, name=None))


def test_hsdpa_logs_have_bytes_since_the_row_before(tmp_path: Path) -> None:
    log = "1289406399 549611 53.1 10.4 125000 1000\n1289406401 551611 53.1 10.4 500000 2000\n"
    assert pieces(made("hsdpa", tmp_path, bus__log=log)["bus"]) == [(0, 1e6, 1e6), (1, 2e6, 2e6), (3, 1e6, 1e6)]


def test_pensieves_rows_have_the_rate_since_the_row_before(tmp_path: Path) -> None:
    cooked = "0.5\t9\n1.5\t2\n3.5\t4\n"
    assert pieces(made("pensieve", tmp_path, norway=cooked)["norway"]) == [(0, 2e6, 2e6), (1, 4e6, 4e6), (3, 2e6, 2e6)]


def test_a_third_column_of_pensieves_is_left_out_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pensieve itself writes two; copies of others have a delay there, of which nobody says whether it is in ms."""
    (tmp_path / "norway").write_text("0.5 9 20\n1.5 2 30\n3.5 4 80\n")
    sfl_sim("devices", "convert", "pensieve", tmp_path / "norway", "--out", tmp_path / "out")
    said, written = capsys.readouterr().out, (tmp_path / "out" / "norway.csv").read_text()
    assert all(
        "column 3 is left out (median 30)" in text and "clients.network.latency_s" in text for text in (said, written)
    )
    assert pieces(pd.read_csv(tmp_path / "out" / "norway.csv", comment="#"))[0] == (0, 2e6, 2e6)


def test_mahimahi_has_a_file_for_each_direction_whose_packets_are_averaged(tmp_path: Path) -> None:
    tables = made("mahimahi", tmp_path, lte__up="100\n1500\n2000\n", lte__down="\n".join(map(str, range(10, 2001, 10))))
    packet = 8 * 1504
    assert pieces(tables["lte"]) == [
        (0, packet, 99 * packet),
        (1, 2 * packet, 101 * packet),
        (2, packet, 99 * packet),
    ]


def test_the_fccs_raw_tables_give_a_trace_for_each_unit_with_and_without_names_of_columns(tmp_path: Path) -> None:
    names = "unit_id,dtime,target,address,fetch_time,bytes_total,bytes_sec,bytes_sec_interval,warmup_time"
    gets = f"{names}\n7,2020-01-01,t,a,5,1,1000,2000,0\n7,2020-01-01,t,a,5,1,1000,0,0\n8,2020-01-01,t,a,5,1,9,9,0\n"
    posts = "7,2020-01-01,t,a,5,1,250\n7,2020-01-01,t,a,5,1,500\n"
    tables = made("fcc", tmp_path, curr_httpgetmt__csv=gets, curr_httppostmt__csv=posts)
    assert {name: pieces(table) for name, table in tables.items()} == {
        "unit_7": [(0, 2000, 16000), (5, 4000, 8000), (10, 2000, 16000)]
    }


def test_months_of_the_fccs_tables_follow_each_other(tmp_path: Path) -> None:
    january, february = ("7,2020,t,a,5,1,1000\n" * 2, "7,2020,t,a,5,1,3000\n")
    tables = made("fcc", tmp_path, curr_httpgetmt_01__csv=january, curr_httpgetmt_02__csv=february)
    assert tables["unit_7"]["downlink_bps"].tolist() == [8000, 8000, 24000, 8000]


def test_5g_logs_leave_rows_without_a_rate_out(tmp_path: Path) -> None:
    log = (
        "Timestamp,DL_bitrate,UL_bitrate,State\n2019.11.28_07.00.00,1000,50,D\n"
        "2019.11.28_07.00.01,-,50,D\n2019.11.28_07.00.03,3000,70,D\n"
    )
    assert pieces(made("ucc_5g", tmp_path, drive__csv=log)["drive"]) == [
        (0, 50e3, 1e6),
        (3, 70e3, 3e6),
        (4, 50e3, 1e6),
    ]


def test_nyu_metss_rates_have_the_unit_of_their_row(tmp_path: Path) -> None:
    """Rows of its bus57.csv; and of its tables of 2020, packed as they are published."""
    bus = "3.97,Mbits/sec\r\n0,bits/sec\r\n512,Kbits/sec\r\n"
    assert pieces(made("nyu_mets", tmp_path, bus57__csv=bus)["bus57"]) == [
        (0, 3.97e6, 3.97e6), (1, 0, 0), (2, 512e3, 512e3), (3, 3.97e6, 3.97e6),
    ]  # fmt: skip
    table = gzip.compress(b"12.6,9,0,102,13,3,7.37,2100\n3.18,9,0,102,13,3,6.51,2100\n")
    assert pieces(made("nyu_mets", tmp_path, BB16__txt__gz=table)["BB16"])[:2] == [
        (0, 12.6e6, 12.6e6),
        (1, 3.18e6, 3.18e6),
    ]
    with pytest.raises(ScenarioError, match="needs units, one of bits/sec, Kbits/sec"):
        made("nyu_mets", tmp_path, bus__csv="3.97,MBytes\n")


@pytest.mark.parametrize("as_lines", [False, True])
def test_mobiperfs_tests_become_quantiles_by_direction(tmp_path: Path, as_lines: bool) -> None:
    def test(up: bool, *kbps: float) -> dict[str, Any]:
        return {"type": "tcpthroughput", "parameters": {"dir_up": up}, "values": {"tcp_speed_results": str([*kbps])}}

    tests = [test(True, 1000, 3000), test(True, 4000), test(False, 8000), {"type": "ping"}]
    content = "\n".join(map(json.dumps, tests)) if as_lines else json.dumps(tests)
    links = made("mobiperf", tmp_path, tests__json=content)["links"]
    assert links.iloc[[0, 10, 20], 1].tolist() == [2e6, 3e6, 4e6]
    assert set(links["downlink_bps"]) == {8e6}


def iperf3(*intervals: tuple[float, float], reverse: int = 0, **more: list[tuple[float, float]]) -> str:
    """What `iperf3 --json` of version 3.6 prints, of seconds and bit/s of its intervals."""
    described = []
    for i in range(len(intervals)):
        sums = {"sum": intervals[i], **{name: each[i] for name, each in more.items()}}
        described.append(
            {"streams": [{"socket": 5, "start": 0}]}
            | {name: {"seconds": s, "bits_per_second": bps, "omitted": i == 0} for name, (s, bps) in sums.items()}
        )
    start = {"version": "iperf 3.6", "test_start": {"protocol": "TCP", "num_streams": 1, "reverse": reverse}}
    return json.dumps({"start": start, "intervals": described, "end": {"sum_sent": {"bits_per_second": 1.0}}})


def test_iperf3_has_a_file_for_each_direction_whose_intervals_may_end_at_other_times(tmp_path: Path) -> None:
    """The first interval is left out by --omit."""
    up, down = iperf3((1, 9.0), (1, 2e6), (2, 4e6)), iperf3((1, 9.0), (1.5, 1e7), (2, 3e7), reverse=1)
    assert pieces(made("iperf3", tmp_path, home_up__json=up, home_down__json=down)["home"]) == [
        (0, 2e6, 1e7), (1, 4e6, 1e7), (1.5, 4e6, 3e7), (3, 2e6, 1e7),
    ]  # fmt: skip


def test_files_named_after_their_direction_alone_give_a_trace_that_is_found(tmp_path: Path) -> None:
    up, down = iperf3((1, 9.0), (1, 2e6)), iperf3((1, 9.0), (1, 1e7), reverse=1)
    assert list(made("iperf3", tmp_path, up__json=up, down__json=down)) == ["trace"]


def test_two_files_of_one_direction_are_no_pair(tmp_path: Path) -> None:
    up = iperf3((1, 9.0), (1, 2e6))
    with pytest.raises(ScenarioError, match="both go up; one needs --reverse"):
        made("iperf3", tmp_path, home_up__json=up, home_down__json=up)


def test_iperf3_in_both_directions_at_once_or_as_a_stream_of_lines_is_read_too(tmp_path: Path) -> None:
    both = iperf3((1, 9.0), (1, 2e6), sum_bidir_reverse=[(1, 9.0), (1, 8e6)])
    assert pieces(made("iperf3", tmp_path, home__json=both)["home"]) == [(0, 2e6, 8e6), (1, 2e6, 8e6)]
    whole = json.loads(iperf3((1, 9.0), (1, 3e6), reverse=1))
    events = [("start", whole["start"]), *(("interval", each) for each in whole["intervals"]), ("end", whole["end"])]
    lines = "\n".join(json.dumps({"event": event, "data": data}) for event, data in events)
    assert pieces(made("iperf3", tmp_path, lines__json=lines)["lines"]) == [(0, 3e6, 3e6), (1, 3e6, 3e6)]


SPEED_TESTS = {
    "ookla__json": json.dumps(
        {"type": "result", "timestamp": "2026-11-29T10:00:00Z", "ping": {"jitter": 0.8, "latency": 8.9},
         "download": {"bandwidth": 1_000_000, "bytes": 9_000_000, "elapsed": 9000},
         "upload": {"bandwidth": 250_000, "bytes": 2_500_000, "elapsed": 10000}, "packetLoss": 0}
    ),
    "ookla__csv": '"server name","server id","idle latency","idle jitter","packet loss","download","upload",'
    '"download bytes","upload bytes"\n"Berlin","1","8.9","0.8","0","1000000","250000","9000000","2500000"\n',
    "cli__json": json.dumps(
        {"download": 8e6, "upload": 2e6, "ping": 27.1, "server": {"id": "1", "sponsor": "A"}, "share": None}
    ),
    "cli__csv": "Server ID,Sponsor,Server Name,Timestamp,Distance,Ping,Download,Upload,Share,IP Address\n"
    '1,"A, Inc.",Berlin,2026-11-29T10:00:00Z,32.1,27.1,8000000.0,2000000.0,,\n'
    "1,A,Berlin,2026-11-29T11:00:00Z,0,0,0,0,,\n",
    "plain__csv": '1,"A, Inc.",Berlin,2026-11-29T10:00:00Z,32.1,27.1,8000000.0,2000000.0,,\n',
    "tiles__csv": "quadkey,avg_d_kbps,avg_u_kbps,avg_lat_ms,tests,devices\n0231,8000,2000,40,3,2\n",
}  # fmt: skip


@pytest.mark.parametrize("name", SPEED_TESTS)
def test_every_form_of_speed_tests_has_its_own_unit(tmp_path: Path, name: str) -> None:
    """All say 8 Mbit/s down and 2 up; a test that failed is left out."""
    links = made("speedtest", tmp_path, **{name: SPEED_TESTS[name]})["links"]
    assert set(links["uplink_bps"]) == {2e6}
    assert set(links["downlink_bps"]) == {8e6}


def test_several_speed_tests_become_quantiles_that_a_scenario_draws_from(tmp_path: Path) -> None:
    slow = json.dumps({"download": 4e6, "upload": 1e6, "ping": 30})
    made("speedtest", tmp_path, a__json=slow, b__csv=SPEED_TESTS["cli__csv"])
    links = pd.read_csv(tmp_path / "out" / "links.csv", comment="#")
    assert links.iloc[[0, 10, 20], 1:].to_numpy().tolist() == [[1e6, 4e6], [1.5e6, 6e6], [2e6, 8e6]]
    uplinks, *_ = draw_links(3, stream(0, ""), NetworkSection(profile=str(tmp_path / "out" / "links.csv")))
    assert len(uplinks) == 3


def test_fedscales_pickles_give_devices_links_and_stays(tmp_path: Path) -> None:
    capacity = pickle.dumps(
        {1: {"computation": 50.0, "communication": 1000.0}, 2: {"computation": 150, "communication": 9e3}}
    )
    tables = made("fedscale_capacity", tmp_path, client_device_capacity=capacity)
    assert tables["devices"]["ms_per_frame"].tolist() == [50, 150]
    assert tables["links"]["uplink_bps"].iloc[[0, -1]].tolist() == [1e6, 9e6]
    behaviour = pickle.dumps(
        {1: {"duration": 1, "active": [10, 60], "inactive": [20, 90], "finish_time": 80, "model": "x"}}
    )
    stays = made("fedscale_behaviour", tmp_path, client_behave_trace=behaviour)["availability"]
    assert pieces(stays) == [(1, 10, 20, 80), (1, 60, 80, 80)]


def test_nothing_in_a_pickle_is_executed(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "trapped"),)

    with pytest.raises(ScenarioError, match=r"posix\.mkdir"):
        made("fedscale_capacity", tmp_path, client_device_capacity=pickle.dumps({1: Trap()}))
    assert not (tmp_path / "trapped").exists()


def test_flashs_clients_are_there_while_they_charge_on_wi_fi_and_nobody_looks(tmp_path: Path) -> None:
    messages = "\n".join(
        f"2020-01-29 {time}\t{what}\t80%"
        for time, what in [
            ("01:00:00", "screen_off"), ("02:00:00", "wifi"), ("03:00:00", "battery_charged_on"),
            ("04:00:00", "4G"), ("05:00:00", "wifi"), ("06:00:00", "screen_on"), ("07:00:00", "screen_lock"),
        ]
    )  # fmt: skip
    stays = made("flash", tmp_path, states__json=json.dumps({"0": {"messages": messages}, "1": {"messages": ""}}))
    assert pieces(stays["availability"]) == [(0, 3 * 3600, 4 * 3600, 86400), (0, 5 * 3600, 6 * 3600, 86400)]


def test_a_scenario_takes_what_was_converted(tmp_path: Path) -> None:
    capacity = pickle.dumps({n: {"computation": 50.0 + n, "communication": 1000.0 * n} for n in (1, 2, 3)})
    made("fedscale_capacity", tmp_path, capacity=capacity)
    made(
        "fedscale_behaviour", tmp_path, traces=pickle.dumps({1: {"active": [10], "inactive": [20], "finish_time": 80}})
    )
    made("pensieve", tmp_path / "out", a="0 1\n1 2\n2 3\n", b="0 1\n1 5\n")
    _, rates, _ = draw_devices(3, stream(0, ""), Compute(profile=str(tmp_path / "out" / "devices.csv")), None)
    assert rates.min() > 300_774_272 / 0.06
    uplinks, *_ = draw_links(3, stream(0, ""), NetworkSection(profile=None, trace=str(tmp_path / "out" / "out")))
    assert sorted(link.mean_bps for link in uplinks)[::2] in ([2.5e6, 5e6], [2.5e6, 2.5e6])
    assert draw_presence(2, stream(0, ""), Availability(profile=str(tmp_path / "out" / "availability.csv")))


@pytest.mark.parametrize(
    ("form", "content", "problem"),
    [
        ("hsdpa", "1 2 3\n", "cannot be read as hsdpa"),
        ("pensieve", "a b\n", "cannot be read as pensieve: could not convert string 'a'"),
        ("mahimahi", "", "cannot be read as mahimahi"),
        ("fcc", "unit_id,x\n1,2\n", "cannot be read as fcc: 'bytes_sec'"),
        ("ucc_5g", "Timestamp\n3\n", "cannot be read as ucc_5g"),
        ("mobiperf", "{", "1: is not JSON"),
        ("mobiperf", "[]", "nothing of the form mobiperf in it"),
        ("iperf3", '{"start": {}, "intervals": [], "error": "unable to connect"}', "iperf3 says: unable to connect"),
        ("iperf3", "{}", "nothing of the form iperf3 in it"),
        ("speedtest", "a,download\n1,2\n", "needs the columns of a known speed test: avg_d_kbps"),
        ("speedtest", '{"error": "offline"}', "nothing of the form speedtest in it"),
        ("fedscale_capacity", "no pickle", "cannot be read as fedscale_capacity"),
        ("fedscale_behaviour", pickle.dumps([1]), "holds no mapping of clients"),
        ("flash", "[]", "cannot be read as flash"),
    ],
)
def test_what_is_no_such_file_is_one_line(tmp_path: Path, form: str, content: str | bytes, problem: str) -> None:
    with pytest.raises(ScenarioError, match=problem):
        made(form, tmp_path, file=content)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("unit", ["1/../../../outside", "../outside", "..\\\\outside", "/outside"])
def test_a_name_in_a_table_leads_nowhere_else(tmp_path: Path, unit: str) -> None:
    (tmp_path / "out" / "unit_1").mkdir(parents=True)
    table = "unit_id,dtime,bytes_sec\n" + "".join(f"{unit},2,{rate}\n" for rate in (1, 2, 3))
    with pytest.raises(ScenarioError) as refused:
        made("fcc", tmp_path, t__csv=table)
    assert (refused.value.key, refused.value.found) == ("convert", f"unit_{unit}")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["out", "t.csv", "unit_1"]


@pytest.mark.parametrize("form", ["mobiperf", "flash"])
@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("[" * 50_000, 2), ("\n".join("[" * 50_000), 501), ("9" * 5000, 2), ("[\n1e999]", 3), ("NaN", 2),
        ("[\nnothing]", 3),
    ],
    ids=["deep", "deep over lines", "long", "large", "no number", "wrong"],
)  # fmt: skip
def test_json_that_no_computer_takes_is_told_with_file_and_line(
    tmp_path: Path, form: str, value: str, line: int
) -> None:
    with pytest.raises(ScenarioError) as refused:
        made(form, tmp_path, t__json=f'{{"a":\n{value}\n}}')
    assert (refused.value.file, refused.value.line) == (str(tmp_path / "t.json"), line)
    assert not (tmp_path / "out").exists()


def test_of_one_object_a_line_the_wrong_line_is_told(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as refused:
        made("mobiperf", tmp_path, t__json='{"type": 1}\n\n{"type": 1e999}\n')
    assert refused.value.line == 3


def test_a_trace_of_a_million_years_is_refused_before_memory_ends(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="lasts"):
        made("mahimahi", tmp_path, lte__up="1\n1e18\n", lte__down="1\n1e18\n")


def test_the_command_names_the_key_that_takes_what_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    for name in ("a", "b", ".hidden"):
        (tmp_path / "logs" / name).write_text("0 1\n1 2\n2 3\n")
    sfl_sim("devices", "convert", "pensieve", "logs", "--out", "traces")
    assert capsys.readouterr().out == "clients.network.trace: traces\n"
    sfl_sim("devices", "convert", "pensieve", "logs/a", "--out", "one")
    assert capsys.readouterr().out == "clients.network.trace: one/a.csv\n"
    sfl_sim("devices", "convert", "--help")
    told = capsys.readouterr().out
    assert all(form in told for form in FORMS)
    sfl_sim("devices", "convert", "pensive", "logs", code=2)
    assert "did you mean 'pensieve'?" in capsys.readouterr().err
    sfl_sim("devices", "convert", "pensieve", "nothing", code=2)
    assert "convert: no such file (found 'nothing')" in capsys.readouterr().err
    sfl_sim("devices", "convert", "pensieve", "logs/a", "logs/c", "--out", "two", code=2)
    assert "convert: no such file (found 'logs/c')" in capsys.readouterr().err
    assert not (tmp_path / "two").exists()
    sfl_sim("devices", "convert", "pensieve", "logs", "--out", "traces")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.csv").write_text("mine")
    capsys.readouterr()
    sfl_sim("devices", "convert", "pensieve", "logs", "--out", "mine", code=2)
    assert "(found 'mine/a.csv'" in capsys.readouterr().err
    (tmp_path / "a.csv").write_text("0 1\n1 2\n2 3\n")
    sfl_sim("devices", "convert", "pensieve", "a.csv", "--out", ".", code=2)
    assert "would replace what is read" in capsys.readouterr().err
