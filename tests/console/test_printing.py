"""Output in terminals: names as they are, and no control sequences from them."""

import io
import re

import pytest
import yaml
from rich.table import Table

from sfl_sim.cli import main
from sfl_sim.console import Terminal, conclude, say
from sfl_sim.store.trial import Failure
from sfl_sim.studies.launch import Outcome, TrialsFailed

OBEYED = "\x1b]0;mine\x07\x1b[2J\r[red]x[/red]:smile:\u202eevil"
SHOWN = r"\x1b]0;mine\x07\x1b[2J\r[red]x[/red]:smile:\u202eevil"
OWN = re.compile(r"\x1b\[[\d;?]*[mKhlA]")
"""Control sequences of our own: colours and the position of the cursor."""


def test_a_name_in_a_table_is_shown_and_not_obeyed():
    terminal = Terminal()
    terminal.file = io.StringIO()
    table = Table("name", "other\u00a0name")
    table.add_row(OBEYED, "fine\nlines")
    terminal.print(table, OBEYED)
    printed = terminal.file.getvalue()
    assert printed.count(r"\x1b[2J") == 2  # rich drops some of what a terminal would obey
    assert "[red]x[/red]:smile:" in printed
    assert "\x1b" not in printed
    assert "other\u00a0name" in printed


def test_what_others_gave_is_announced_before_the_failure_of_a_trial(tmp_path, capsys):
    failed = TrialsFailed([Failure("lr=0.2", 0, 1, "RuntimeError: no")], 2)
    failed.outcome = Outcome(tmp_path, "failed")
    (tmp_path / "privacy.html").touch()

    def train(notify):
        raise failed

    with pytest.raises(TrialsFailed):
        conclude(train, "privacy.html", lambda folder: "a table", quiet=False)
    assert capsys.readouterr().out.split() == ["a", "table", str(tmp_path / "privacy.html")]


def test_a_line_too(capsys):
    say(OBEYED)
    say("fine\nlines", err=True)
    assert capsys.readouterr() == (SHOWN + "\n", "fine\nlines\n")


@pytest.mark.parametrize("command", ["run --timing-only", "check", "whatif --vary server.workers=1,2"])
def test_no_command_passes_on_what_a_scenario_says_to_the_terminal(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    network = tmp_path / f"net{OBEYED.replace('/', '')}.csv"
    network.write_text("quantile,uplink_bps,downlink_bps\n0,1e6,1e6\n1,2e6,2e6\n")
    scenario = {
        "data": {"name": "digits", "train_samples": 40, "test_samples": 20},
        "clients": {"count": 2, "compute": 1e9},
        "train": {"rounds": 1, "batch_size": 10},
        "method": {"name": "splitfed_v1"},
        "grid": {"clients.network": [{"profile": str(network)}, {"profile": "mobiperf"}]},
    }
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump(scenario))
    name, *options = command.split()
    main([name, "theirs.yaml", *options])
    for printed in capsys.readouterr():
        assert set(OWN.sub("", printed)) <= {"\n", "\u00a0", *filter(str.isprintable, printed)}
