"""Links are drawn as the profile has them, vary as the trace does, or have the rates that were given."""

import numpy as np
import pytest
from refusals import refused
from scipy.stats import ks_2samp, spearmanr

from sfl_sim.build.catalogue import check_names
from sfl_sim.errors import ScenarioError
from sfl_sim.rng import stream
from sfl_sim.scenario.load import parse
from sfl_sim.scenario.sections import NetworkSection
from sfl_sim.system.links import RateTrace
from sfl_sim.system.network import correlated, draw_links, scaled_trace
from sfl_sim.system.profiles import available, find, per_client, read_table


def means_bps(links):
    return np.array([link.mean_bps for link in links])


@pytest.mark.parametrize("profile", available("network"))
def test_drawn_rates_have_the_quantiles_of_the_table_and_one_quantile_serves_both_directions(profile):
    n = 20_000
    uplinks, downlinks, _ = draw_links(n, stream(0, "links"), NetworkSection(profile=profile))
    table = read_table(find("network", profile, ""), ["quantile"], "")
    grid = table.numbers("quantile")
    up, down = (
        np.interp(means_bps(links), table.numbers(column), grid)
        for links, column in ((uplinks, "uplink_bps"), (downlinks, "downlink_bps"))
    )
    uniform = (np.arange(n) + 0.5) / n
    assert np.abs(np.sort(up) - uniform).max() < 1.95 / np.sqrt(n)  # Kolmogorov-Smirnov, 0.1 %
    assert up == pytest.approx(down, abs=1e-6)


@pytest.mark.parametrize("correlation", [-1.0, -0.6, 0.0, 0.5, 0.9])
def test_uplinks_and_downlinks_have_the_rank_correlation_asked_for_and_the_profile_s_quantiles(correlation):
    n = 20_000
    drawn = draw_links(n, stream(0, "links"), NetworkSection(up_down_correlation=correlation))
    up, down = map(means_bps, drawn[:2])
    assert up.tolist() == means_bps(draw_links(n, stream(0, "links"), NetworkSection())[0]).tolist()
    assert spearmanr(up, down).statistic == pytest.approx(correlation, abs=4 / np.sqrt(n))
    together = means_bps(draw_links(n, stream(0, "links"), NetworkSection())[1])
    assert ks_2samp(down, together).statistic < 1.95 * np.sqrt(2 / n)
    assert list(drawn[1])[:7] == list(
        draw_links(7, stream(0, "links"), NetworkSection(up_down_correlation=correlation))[1]
    )


@pytest.mark.parametrize("correlation", [-0.5, 0.5, 0.9])
def test_the_rank_correlation_is_exact_and_not_that_of_the_normal_scores(correlation):
    """Normal scores with a correlation of 0.5 have ranks with one of 0.483."""
    uniform, others = stream(0, "pairs").random((2, 300_000))
    found = spearmanr(correlated(uniform, others, correlation), others).statistic
    assert found == pytest.approx(correlation, abs=0.004)


@pytest.mark.parametrize("correlation", [-0.8, 0.3, 1.0])
def test_fast_phones_have_fast_uplinks_as_far_as_asked_for(correlation):
    n = 20_000
    macs_per_s = stream(0, "devices").choice([1e9, 2e9, 5e9, 9e9], n)  # with ties
    up, down = map(
        means_bps,
        draw_links(
            n, stream(0, "links"), NetworkSection(profile="fedscale", compute_correlation=correlation), macs_per_s
        )[:2],
    )
    ranked = macs_per_s + stream(0, "ties").random(n)
    assert spearmanr(ranked, up).statistic == pytest.approx(correlation, abs=0.07)  # ties are ranked by lot
    assert spearmanr(up, down).statistic == pytest.approx(1)
    plain = means_bps(draw_links(n, stream(0, "links"), NetworkSection(profile="fedscale"))[0])
    assert ks_2samp(up, plain).statistic < 1.95 * np.sqrt(2 / n)


def test_mobiperf_has_the_medians_of_the_raw_tests():
    uplinks, downlinks, _ = draw_links(20_001, stream(0, "links"), NetworkSection())
    assert np.median(means_bps(uplinks)) == pytest.approx(1.369e6, rel=0.1)
    assert np.median(means_bps(downlinks)) == pytest.approx(2.341e6, rel=0.1)


def test_fixed_rates_are_constant_links():
    network = NetworkSection(uplink_bps=[1e6, 2e6], downlink_bps=8e6, latency_s=0.05, scale=2)
    uplinks, downlinks, latency_s = draw_links(2, stream(0, "links"), network)
    assert list(uplinks) == [RateTrace(2e6), RateTrace(4e6)]
    assert list(downlinks) == [RateTrace(16e6), RateTrace(16e6)]
    assert latency_s.tolist() == [0.05, 0.05]


def test_a_trace_alone_is_the_rate_itself():
    uplinks, _, _ = draw_links(3, stream(0, "links"), NetworkSection(profile=None, trace="hsdpa_bus"))
    table = read_table(find("network/traces", "hsdpa_bus", ""), ["time_s"], "")
    times_s, rates_bps = table.numbers("time_s"), table.numbers("uplink_bps")[:-1]
    measured_bps = np.average(rates_bps, weights=np.diff(times_s))
    assert means_bps(uplinks) == pytest.approx(measured_bps)
    assert uplinks[0].pattern is not None
    assert uplinks[0].pattern.rates_bps == rates_bps.tolist()


def test_a_trace_with_a_profile_varies_around_each_clients_own_mean():
    steady, varying = (
        draw_links(4, stream(0, "links"), NetworkSection(trace=trace))[0] for trace in (None, "hsdpa_bus")
    )
    assert means_bps(varying) == pytest.approx(means_bps(steady))
    periods = 1000
    for link, mean_bps in zip(varying, means_bps(steady), strict=True):
        assert link.pattern is not None
        size_bytes = mean_bps * periods * link.pattern.period_s / 8
        assert link.transfer_s(0.0, size_bytes) == pytest.approx(periods * link.pattern.period_s)


def trace_file(path, *rates_bps):
    rows = [f"{time_s},{rate_bps},{rate_bps}" for time_s, rate_bps in enumerate([*rates_bps, rates_bps[0]])]
    path.write_text("\n".join(["time_s,uplink_bps,downlink_bps", *rows]))
    return str(path)


def test_each_client_may_have_a_trace_of_its_own_with_the_rates_that_it_has(tmp_path):
    files = [trace_file(tmp_path / f"{n}.csv", n * 1e6, 3 * n * 1e6) for n in (1, 2, 3)]
    listed, _, _ = draw_links(3, stream(0, "links"), NetworkSection(profile=None, trace=files))
    assert means_bps(listed) == pytest.approx([2e6, 4e6, 6e6])
    drawn, downlinks, _ = draw_links(7, stream(0, "links"), NetworkSection(profile=None, trace=str(tmp_path)))
    assert sorted(means_bps(drawn)[:3]) == sorted(means_bps(drawn)[3:6]) == pytest.approx([2e6, 4e6, 6e6])
    assert means_bps(drawn).tolist() == means_bps(downlinks).tolist()
    with refused("clients.network.trace", found=3):
        draw_links(4, stream(0, "links"), NetworkSection(profile=None, trace=files))
    assert parse({"clients": {"count": 3, "network": {"profile": None, "trace": files}}})
    for trace, problem in (([*files, "nothing.csv"], "found 'nothing.csv'"), (str(tmp_path / "no"), "no file")):
        study = parse({"clients": {"count": 4, "network": {"profile": None, "trace": trace}}})
        with pytest.raises(ScenarioError, match=problem):
            check_names(study)
    (tmp_path / "empty").mkdir()
    with refused("clients.network.trace"):
        draw_links(4, stream(0, "links"), NetworkSection(profile=None, trace=str(tmp_path / "empty")))


def test_it_is_told_that_a_trace_of_ones_own_varies_around_a_profiles_rates(tmp_path):
    own = trace_file(tmp_path / "mine.csv", 1e6, 2e6)
    note = scaled_trace(NetworkSection(trace=own))
    assert note is not None
    assert "varies around the rates of mobiperf; with profile: null it has its own" in str(note)
    assert scaled_trace(NetworkSection(trace=own, profile=None)) is None
    assert scaled_trace(NetworkSection(trace="hsdpa_bus")) is None


def test_each_client_begins_somewhere_in_the_trace_with_both_directions_at_once():
    uplinks, downlinks, _ = draw_links(1000, stream(0, "links"), NetworkSection(trace="hsdpa_metro"))
    phases_s = np.array([link.phase_s for link in uplinks])
    assert phases_s.tolist() == [link.phase_s for link in downlinks]
    assert np.abs(np.sort(phases_s) / 120 - np.arange(1000) / 1000).max() < 1.95 / np.sqrt(1000)


def test_a_client_keeps_its_link_when_others_join():
    few, many = (draw_links(n, stream(0, "links"), NetworkSection(trace="hsdpa_bus"))[0] for n in (3, 30))
    assert means_bps(few).tolist() == means_bps(many)[:3].tolist()
    assert [link.phase_s for link in few] == [link.phase_s for link in list(many)[:3]]


def test_a_wrong_number_of_rates_is_refused():
    with refused("clients.network.uplink_bps", says=r"found 3; allowed: 2 entries"):
        draw_links(2, stream(0, "links"), NetworkSection(uplink_bps=[1, 2, 3], downlink_bps=1))


@pytest.mark.parametrize("name", ["Client", "client_id", "id"])
def test_a_column_that_may_say_whose_rows_they_are_is_not_passed_over(tmp_path, name):
    path = tmp_path / "links.csv"
    path.write_text(f"{name},uplink_bps\n1,2e6\n0,1e6\n")
    with pytest.raises(ScenarioError) as refused:
        per_client(str(path), 2, "clients.network.uplink_bps")
    assert (refused.value.found, refused.value.allowed) == (name, ["client"])


@pytest.mark.parametrize(("key", "first"), [("profile", "quantile"), ("trace", "time_s")])
def test_a_number_of_a_link_that_nothing_reads_is_refused(tmp_path, key, first):
    path = tmp_path / "links.csv"
    path.write_text(f"{first},uplink_bps,downlink_bps,latency_s\n0,1 Mbit/s,1e6,0.1\n1,1e6,1e6,\n")
    section = NetworkSection.model_validate({"profile": None, key: str(path)})
    with pytest.raises(ScenarioError) as refused:
        draw_links(1, np.random.default_rng(0), section)
    assert (refused.value.key, refused.value.found) == (f"clients.network.{key}", "latency_s")
