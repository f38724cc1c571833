"""A foreign scenario or run cannot reach the network, or write outside of its folder."""

import os
import socket
from pathlib import Path

import pytest
import yaml

from sfl_sim.cli import main
from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.load import load, parse

TINY = {
    "name": "theirs",
    "data": {"name": "digits", "train_samples": 60, "test_samples": 20},
    "clients": {"count": 2, "compute": 1e9, "network": "mobiperf"},
    "train": {"rounds": 1, "batch_size": 10},
    "method": {"name": "splitfed_v1"},
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump(TINY))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def reached(monkeypatch):
    """Collect the addresses that code has tried to reach."""
    found = []

    def refuse(whom):
        found.append(whom)
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", lambda self, address: refuse(address))
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: refuse(host))
    return found


def test_no_command_asks_the_network_for_anything(place, reached, capsys):
    main(["run", "theirs.yaml", "-q"])
    main(["report", "reports/theirs", "--export", "tables"])
    main(["reprice", "reports/theirs", "--set", "clients.network.scale=2", "-q"])
    main(["landscape", "reports/theirs", "--points", "3", "--samples", "20"])
    main(["whatif", "theirs.yaml", "--vary", "server.workers=1,2", "-q"])
    main(["check", "theirs.yaml", "--partition", "who.html"])
    assert reached == []


def test_a_data_set_is_the_one_thing_that_is_fetched_unless_it_is_forbidden(place, reached, monkeypatch, capsys):
    monkeypatch.setenv("SFL_SIM_DATA", str(place / "data"))
    published = ["run", "theirs.yaml", "-q", "--set", "data={name: cifar10}"]
    for extra, asked in ((["--set", "data.download=false"], False), ([], True)):
        with pytest.raises(SystemExit) as stop:
            main([*published, *extra])
        assert stop.value.code == 2
        assert bool(reached) == asked


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/b", "..", ".hidden", "x" * 101, "new\nline", "esc\x1b[2J"])
def test_a_name_cannot_lead_elsewhere_whatever_makes_a_folder_of_it(name):
    with pytest.raises(ScenarioError) as refused:
        parse(TINY | {"name": name})
    assert refused.value.key == "name"


def test_nor_can_that_of_a_stored_run(place):
    main(["run", "theirs.yaml", "--timing-only", "-q"])
    stored = Path("reports/theirs/scenario.yaml")
    stored.write_text(stored.read_text().replace("name: theirs", "name: ../../evil"))
    with pytest.raises(ScenarioError) as refused:
        load(stored)
    assert refused.value.key == "name"
    with pytest.raises(SystemExit) as stop:
        main(["reprice", "reports/theirs", "--set", "clients.network.scale=2"])
    assert stop.value.code == 2
    assert sorted(path.name for path in place.iterdir()) == ["reports", "theirs.yaml"]


def test_a_tilde_in_a_name_is_a_tilde(place, monkeypatch):
    monkeypatch.setenv("HOME", str(place / "home"))
    main(["run", "theirs.yaml", "--timing-only", "-q", "--set", "name='~'"])
    assert (place / "reports" / "~" / "report.html").exists()
    assert not (place / "home").exists()


def planted(run, precious):
    """Links to what is precious, wherever a command writes beside a stored run's tables."""
    for name in ("report.html.part", "landscape.html.part", "landscape.parquet.part"):
        (run / name).symlink_to(precious)
    (run / "report.html").unlink()
    (run / "report.html").symlink_to(precious)


@pytest.mark.skipif(os.name == "nt", reason="Windows lets few make links")
def test_links_in_a_run_that_somebody_sent_are_not_followed_where_we_write(place, capsys):
    main(["run", "theirs.yaml", "-q"])
    run, precious = place / "reports" / "theirs", place / "precious"
    precious.write_text("mine")
    planted(run, precious)
    (place / "tables").mkdir()
    (place / "tables" / "rounds.csv").symlink_to(precious)
    main(["landscape", str(run), "--points", "3", "--samples", "20"])
    main(["report", str(run), "--export", "tables", "--out", str(run / "report.html")])
    assert precious.read_text() == "mine"
    assert not (run / "report.html").is_symlink()
    assert not (place / "tables" / "rounds.csv").is_symlink()
