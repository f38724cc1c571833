"""Arrivals of requests: their times and clients."""

import numpy as np
import pytest

from sfl_sim.errors import ScenarioError
from sfl_sim.features.serve.fleet import poisson, read_trace
from sfl_sim.rng import stream

RATES = np.array([1.0, 0.0, 3.0])


def test_each_client_has_a_poisson_process_of_its_own_rate():
    """Gaps of mean and deviation 1 / rate, within four standard errors; and one client's say nothing of another's."""
    times_s, clients = poisson(RATES, 40_000, stream(0, "arrivals"))
    assert (np.diff(times_s) >= 0).all()
    for client in (0, 2):
        gaps_s = np.diff(times_s[clients == client]) * RATES[client]
        assert gaps_s.mean() == pytest.approx(1, abs=4 / np.sqrt(len(gaps_s)))
        assert gaps_s.std() == pytest.approx(1, abs=0.04)
    counts = [np.histogram(times_s[clients == client], 200)[0] for client in (0, 2)]
    assert abs(np.corrcoef(counts)[0, 1]) < 0.25
    assert 1 not in clients


def test_equal_streams_bring_equal_requests():
    one, other = (poisson(RATES, 50, stream(3, "arrivals")) for _ in range(2))
    assert np.array_equal(one.times_s, other.times_s)
    assert np.array_equal(one.clients, other.clients)


def test_a_trace_is_read_in_order_of_time(tmp_path):
    path = tmp_path / "requests.csv"
    path.write_text("client,what,time_s\n2,x,1.5\n0,y,0.25\n1,z,1.5\n")
    times_s, clients = read_trace(path, 3, "serving.arrivals.file")
    assert times_s.tolist() == [0.25, 1.5, 1.5]
    assert clients.tolist() == [0, 2, 1]


def test_blanks_after_commas_comments_and_blank_lines_do_not_matter(tmp_path):
    path = tmp_path / "requests.csv"
    path.write_text("# source: mine\ntime_s, client\n1.5, 2\n\n2.5, 0\n \n")
    times_s, clients = read_trace(path, 3, "serving.arrivals.file")
    assert times_s.tolist() == [1.5, 2.5]
    assert clients.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("time_s,client\n0.5,0\nsoon,1\n", r"csv:3: trace: column 'time_s' cannot be used \(found 'soon'"),
        ("time_s,client\n-1,0\n", "csv:2: .*allowed: seconds, 0 to 1e"),
        ("time_s,client\n1,0\n2,3\n", "csv:3: trace: column 'client' .*found '3'; allowed: 0 to 2"),
        ("time_s,client\n1,0\n2,0.5\n", "csv:3: trace: column 'client' .*found '0.5'"),
        ("time_s,client\n1,0\n2_0,1\n", "csv:3: trace: column 'time_s' .*found '2_0'"),
        ("time_s,client\nTrue,0\nFalse,1\n", "csv:2: trace: column 'time_s' .*found 'True'"),
        ("time_s,client\n1,500,0\n2,0,1\n", r"csv:2: trace: row of another width \(found 3; allowed: 2 cells"),
        ("time_s,client,client\n1,0,1\n", "csv:1: trace: column 'client' is given twice"),
        ("time_s\n1\n", "csv:1: trace: column 'client' is missing"),
        ("", "csv: trace: column 'time_s' is missing"),
    ],
)
def test_what_is_wrong_with_a_trace_is_told_with_its_line(tmp_path, text, told):
    path = tmp_path / "requests.csv"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=told):
        read_trace(path, 3, "trace")


def test_a_trace_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ScenarioError, match="cannot be read"):
        read_trace(tmp_path / "none.csv", 3, "trace")
