"""The command line as such: its help, and what it says of mistakes and failures, with which exit code."""

import re
import shlex
import sys
from io import BytesIO, TextIOWrapper

import pytest
import yaml
from command import TINY, sfl_sim
from typer.main import get_command

from sfl_sim.cli import app, main

pytestmark = pytest.mark.usefixtures("without_pages")


def test_the_help_and_bare_sfl_sim(capsys):
    for option in ("-h", "--help"):
        sfl_sim(option)
        assert "Run a scenario" in capsys.readouterr().out
    sfl_sim(code=2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("setting", "key", "told"),
    [
        ("name=../evil", "name", "'../evil'"),
        ("seed=99999999999999999999", "seed", "99999999999999999999"),
        ("server.order=os.path:join", "server.order", "roster"),
        ("method.name=splitfed_v3x", "method.name", "did you mean 'splitfed_v3'?"),
        ("method.name=os:path", "method.name", "sfl_sim.methods.Method"),
        ("method.name=no_such_module:X", "method.name", "no_such_module"),
        ("method.server_agg_ever=step", "method.server_agg_ever", "did you mean 'server_agg_every'?"),
        ("method.server_agg_every=steps", "method.server_agg_every", "allowed: step, epoch"),
        ("model.cut=9", "model.cut", "1 to 3 (found 9"),
        ("model.cut=conv33", "model.cut", "allowed: 1 conv1, 2 conv2, 3 conv3)"),
        ("model.cut=1.5", "model.cut", "found 1.5"),
        ("model.cut={by: client, values: [1]}", "model.cut.values", "found 1;"),
        ("model.factory=os.path", "model.factory", "'os.path'"),
        ("model.factory=no_such_module:make", "model.factory", "'no_such_module'"),
        ("model.factory=os:sep", "model.factory", "found '/'"),
        ("model.name=cnn_smal", "model.name", "did you mean 'cnn_small'?"),
        ("clients.count=7", "clients.count", "found 7"),
        ("grid={method.name: hydra, method.cut2: 1.5}", "method.cut2", "found 1.5"),
        ("grid={method.name: korea, method.proportion: of}", "method.proportion", "did you mean 'off'?"),
        ("grid={method.name: korea, method.p0: 30%}", "method.p0", "found '30%'"),
        ("grid={method.name: splitfed_v2, method.l2_on: model}", "method.l2_on", "method.l2 is 0.0"),
        ("grid={server.order: client_level, server.max_wait_s: 2}", "server.max_wait_s", "client_level"),
        ("server.burst=2", "server.burst", "fcfs"),
        ("server.order=cyclyc", "server.order", "did you mean 'cyclic'?"),
        ("clients.compute=ai_bench", "clients.compute.profile", "did you mean 'ai_benchmark'?"),
        ("clients.network=missing.csv", "clients.network.profile", "'missing.csv'"),
        ("data.name=digit", "data.name", "did you mean 'digits'?"),
        ("data.partition={kind: dirichlet, alpha: 0.01, min_size: 0}", "data.partition", ""),
        ("data.partition={kind: natural}", "data.partition.kind", "owners"),
        ("data.test={kind: rho_ood, rho: 0.001}", "data.test.rho", ""),
        ("train.batch_size=1000 train.drop_last=true", "train.batch_size", "1000"),
        ("wire.up={kind: delta, inner: 5}", "wire.up.inner", "found 5"),
        ("roundz=3", "roundz", ""),
        ("rounds=3", "rounds", "did you mean 'train.rounds'?"),
        ("train.rounds=many", "train.rounds", "'many'"),
    ],
)
def test_bad_input_is_one_line_with_exit_code_2_and_leaves_nothing(setting, key, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    base = yaml.safe_load(TINY)
    base["method"] = {"name": "splitfed_v1"}
    del base["grid"]
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(base))
    sets = [word for part in (setting.split() if "{" not in setting else [setting]) for word in ("--set", part)]
    sfl_sim("tiny.yaml", *sets, "--allow-code", code=2)
    (line,) = capsys.readouterr().err.splitlines()
    assert f" {key}: " in line
    assert told in line
    assert [p.name for p in tmp_path.iterdir()] == ["tiny.yaml"]


def test_a_mistake_in_the_file_is_named_with_file_and_line(scenario, capsys):
    scenario.write_text(TINY.replace("server.order: [fcfs, cyclic]", "server.order: [fcfs, cyclical]"))
    sfl_sim(scenario, code=2)
    printed = capsys.readouterr().err
    assert f"{scenario}:8: " in printed
    assert "did you mean 'cyclic'?" in printed


def test_other_failures_are_one_line_with_exit_code_1(scenario, capsys, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sfl_sim.store.trial.TrialWriter.add_round", full)
    sfl_sim(scenario, code=1)
    assert "No space left on device" in capsys.readouterr().err.splitlines()[-1]


def test_debug_shows_the_traceback(scenario):
    with pytest.raises(ValueError, match=r"model\.cut"):
        main([str(scenario), "--set", "model.cut=9", "--debug"])


def test_debug_says_why_a_timing_only_run_needs_the_event_loop(scenario, capsys):
    splitnn = ("-q", "--timing-only", "--set", "grid={method.name: splitnn}")
    sfl_sim(scenario, *splitnn)
    assert "event loop" not in capsys.readouterr().err
    sfl_sim(scenario, *splitnn, "--fresh", "--debug")
    assert capsys.readouterr().err.count("the event loop is used: rounds of the same clients may differ") == 1


def test_a_shipped_scenario_runs_by_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sfl_sim("check", "heterogeneous_bw")
    assert "fine" in capsys.readouterr().out
    sfl_sim("check", "heterogenous_bw", code=2)


def test_a_missing_scenario_and_a_wrong_option_are_clear(capsys):
    sfl_sim("heterogenous_bw", code=2)
    assert "did you mean 'heterogeneous_bw'?" in capsys.readouterr().err
    sfl_sim("heterogeneous_bw", "--out", "/", code=2)
    sfl_sim("nowhere.yaml", code=2)
    assert "nowhere.yaml" in capsys.readouterr().err
    sfl_sim("heterogeneous_bw", "--rounds", "3", code=2)
    assert capsys.readouterr().err.endswith("No such option: --rounds (did you mean --set train.rounds=VALUE?)\n")
    sfl_sim("heterogeneous_bw", "--frsh", code=2)
    assert "--fresh" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "near"), [("reprot reports/mine", "report"), ("live aggent --key k", "agent")])
def test_a_misspelled_command_is_told_with_the_nearest_one(arguments, near, capsys):
    sfl_sim(*arguments.split(), code=2)
    assert f"did you mean '{near}'?" in capsys.readouterr().err


def test_a_word_that_is_no_command_says_which_there_are(capsys):
    sfl_sim("validate", "mine.yaml", code=2)
    (line,) = capsys.readouterr().err.splitlines()
    assert {"'validate'", "check,", "whatif,"} <= set(line.replace(";", "").split())


@pytest.mark.parametrize("command", ["report", "landscape", "reprice"])
def test_a_run_whose_name_no_file_can_have_is_one_short_line(command, capsys):
    sfl_sim(command, "x" * 5000, code=2)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("sfl-sim: File name too long (found 'xxx")
    assert len(line) < 300


def test_a_path_may_begin_with_a_tilde_that_no_shell_has_expanded(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "mine.yaml").write_text(TINY)
    sfl_sim("check", "~/mine.yaml", "--partition=~/page.html")
    assert f"{tmp_path}/home/page.html\n" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


@pytest.mark.parametrize(("name", "encoding"), [("plain", "ascii"), ("α=0.1", "cp1252"), ("α=0.1", "ascii")])
def test_a_console_that_cannot_show_a_character_ends_no_run(name, encoding, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(TINY.replace("name: tiny", f"name: '{name}'"), encoding="utf-8")
    shown = {stream: TextIOWrapper(BytesIO(), encoding=encoding) for stream in ("stdout", "stderr")}
    for stream, text in shown.items():
        monkeypatch.setattr(sys, stream, text)
    sfl_sim("s.yaml", "--timing-only")
    shown["stdout"].flush()
    assert b"splitfed_v2, cyclic" in shown["stdout"].buffer.getvalue()
    assert (tmp_path / "reports" / name / "manifest.json").exists()


def test_an_error_without_words_is_named(capsys, monkeypatch):
    monkeypatch.setattr("sfl_sim.build.catalogue.catalogue", lambda: (_ for _ in ()).throw(MemoryError))
    sfl_sim("list", "methods", code=1)
    assert capsys.readouterr().err.startswith("sfl-sim: failed: MemoryError, at ")


def commands_of(group, *words):
    """Yield the words that call each command, and the command: of a group those below it."""
    for word, command in group.commands.items():
        yield from commands_of(command, *words, word) if hasattr(command, "commands") else [((*words, word), command)]


COMMANDS = dict(commands_of(get_command(app)))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_help_of_every_command_has_an_example_that_it_understands(words, capsys):
    sfl_sim(*words, "--help")
    assert "Example: sfl-sim" in capsys.readouterr().out
    command = COMMANDS[words]
    called, *_ = re.search(r"Example: sfl-sim (.*)", command.help)[1].partition(" > ")
    said = [word for word in shlex.split(called) if word != "--allow-code"]
    if words == ("live", "run"):
        said.insert(1, "run")
    assert tuple(said[: len(words)]) == words
    command.make_context(words[-1], said[len(words) :])


def test_there_are_few_commands_whose_help_fits_a_screen(capsys):
    sfl_sim("--help")
    assert (
        sum(bool(line.strip()) for line in capsys.readouterr().out.splitlines()) <= 36
    )  # typer 0.26 has one more empty line
    assert len(get_command(app).commands) <= 14
    assert sum(len(command.params) for command in COMMANDS.values()) <= 105


@pytest.mark.parametrize("group", ["devices", "list", "live"])
def test_a_group_without_a_word_shows_its_help(group, capsys):
    sfl_sim(group, code=2)
    printed = capsys.readouterr()
    assert f"{group} [OPTIONS] COMMAND" in printed.out
    assert not printed.err
    sfl_sim(group, "--help")


def test_an_unknown_word_of_a_group_says_what_is_near(capsys):
    sfl_sim("list", "method", code=2)
    assert "'methods'" in capsys.readouterr().err
