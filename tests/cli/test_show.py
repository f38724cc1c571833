"""Commands that run nothing: what they show, of a scenario and of stored runs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from command import sfl_sim
from plotly.offline import get_plotlyjs

import sfl_sim as package
from sfl_sim.build.catalogue import catalogue
from sfl_sim.methods import METHODS
from sfl_sim.scenario.load import load
from sfl_sim.scenario.presets import METHOD_PRESETS
from sfl_sim.scenario.sections import Scenario
from sfl_sim.store.files import damaged, seal

pytestmark = pytest.mark.usefixtures("without_pages")


def test_a_check_names_the_runs_and_runs_nothing(scenario, tmp_path, capsys):
    sfl_sim("check", scenario)
    assert "3 runs: splitfed_v1; splitfed_v2, fcfs; splitfed_v2, cyclic" in capsys.readouterr().out
    assert not (tmp_path / "reports").exists()


def sets(*settings):
    return [word for setting in settings for word in ("--set", setting)]


SHARDS = "data.partition={kind: label_shards, shards: 1, n_shards: %d}"


def test_a_check_of_a_run_has_a_line_for_each_law_and_fails_if_one_is_broken(scenario, capsys):
    sfl_sim("run", scenario, "--timing-only", "--quiet", "--out", "run")
    capsys.readouterr()
    sfl_sim("check", "run", "--again")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [(int(number), verdict) for number, verdict, *_ in lines] == [(n, "holds:") for n in range(1, 13)]

    rounds = pd.read_parquet("run/rounds.parquet")
    rounds.loc[1, "bytes_up"] += 1
    rounds.to_parquet("run/rounds.parquet")
    sfl_sim("check", "run", code=1)
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines() if " breaks: " in line] == ["7"]
    assert "rounds.parquet row 1: bytes_up" in out
    assert "warning: rounds.parquet" in err


def test_a_fault_of_the_first_step_is_one_line_before_a_run_and_with_check_step(scenario, tmp_path, capsys):
    (tmp_path / "mine.py").write_text("def loss(outputs, targets):\n    return outputs.view(2, 10).mean()\n")
    loss = ["--set", "train.loss=mine:loss", "--allow-code"]
    sfl_sim("check", scenario, *loss)
    for arguments in (["check", scenario, "--step"], [scenario]):
        sfl_sim(*arguments, *loss, code=2)
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "warning" not in line]
        assert line.startswith("sfl-sim: --set: train.loss: the first step fails with RuntimeError: ")
        assert "mine.py:2" in line
    assert not (tmp_path / "reports").exists()
    sfl_sim("check", scenario, "--step")


@pytest.mark.parametrize(
    "given", [["run", "--no-data"], ["run", "--step"], ["tiny.yaml", "--again"], ["tiny.yaml", "--step", "--no-data"]]
)
def test_options_of_scenarios_and_of_runs_are_refused_for_the_other_and_those_that_exclude_each_other(
    given, scenario, tmp_path
):
    (tmp_path / "run").mkdir()
    sfl_sim("check", *given, code=2)


@pytest.mark.parametrize(
    ("settings", "key", "told", "cure"),
    [
        (["server.workers=2"], "server.workers", "splitfed_v2", ["grid={}", "method=splitfed_v1"]),
        (
            ["server.workers=2", "grid={method.name: [fedavg]}"],
            "server.workers",
            "fedavg",
            ["server.workers=unlimited"],
        ),
        (
            ["clients.availability={profile: logs.csv, lost: wait}"],
            "clients.availability.profile",
            "2 clients for 10",
            ["clients.count=2", "data.partition={kind: iid}"],
        ),
        (["clients.count=10", "train.batch_size=1", SHARDS % 100], "data.partition", "90%", [SHARDS % 10]),
    ],
)
def test_a_check_warns_once_of_what_is_not_as_it_seems(settings, key, told, cure, scenario, tmp_path, capsys):
    (tmp_path / "logs.csv").write_text("client,start_s,end_s\na,0,5000\nb,0,9000\n")
    sfl_sim("check", scenario, *sets(*settings))
    (line,) = (line for line in capsys.readouterr().err.splitlines() if told in line)
    assert line.startswith(f"warning: --set: {key}: ")
    sfl_sim("check", scenario, *sets(*settings, *cure))
    assert not capsys.readouterr().err


def test_a_run_warns_of_it_too(scenario, capsys):
    sfl_sim(scenario, "-q", "--timing-only", *sets("server.workers=2"))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: --set: server.workers: ")


def test_a_check_imports_nothing_large_that_it_does_not_need(scenario):
    """They take seconds, or a tenth of one each."""
    main = "from sfl_sim.cli import main; main(['check', 'tiny.yaml'])"
    large = {"torch._dynamo", "transformers", "networkx", "joblib", "scipy.stats", "plotly"}
    code = f"import sys; {main}; print(sys.modules.keys() & {large})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_initial_weights_of_no_run_are_refused_where_they_are_needed(scenario, capsys):
    for run in ("nowhere", "."):
        sfl_sim("check", scenario, *sets(f"model.init.run={run}"), code=2)
        line = capsys.readouterr().err
        assert line.startswith("sfl-sim: --set: model.init.run: ")
        assert f"found '{run}'" in line
    sfl_sim(scenario, "-q", "--timing-only", *sets("model.init.run=nowhere"))


def test_a_partition_is_shown_before_anyone_trains(scenario, tmp_path, capsys):
    sfl_sim("check", scenario, "--set", "data.partition.phi=2", "--set", "repeats=2", "--partition", "who.html")
    printed = capsys.readouterr().out
    assert "dominant_label, p=0.9, phi=2" in printed
    assert re.search(r"Same for all 2 seeds +20 +0 ", printed)
    assert "\nwho.html\n" in printed
    assert "Labels held by each client" in (tmp_path / "who.html").read_text()
    sfl_sim("check", scenario, "--set", "clients.count=7", "--partition", "mine.html", code=2)
    assert capsys.readouterr().err.startswith("sfl-sim: --set: clients.count: ")
    assert not (tmp_path / "mine.html").exists()


def test_the_schema_is_json_and_knows_names_and_options(capsys):
    sfl_sim("list", "schema")
    text = capsys.readouterr().out
    assert json.loads(text)["properties"]
    for word in ("splitfed_v2", "server_agg_every", "cyclic_reverse", "mobilenet_v1", "fashion_mnist"):
        assert word in text


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("methods", ["fedavg", "splitnn", "splitfed_v1", "splitfed_v2"]),
        ("models", ["lenet5", "cnn_small", "cnn8", "mobilenet_v1", "resnet18"]),
        ("datasets", ["digits", "fashion_mnist", "cifar10", "image_folder"]),
        ("orders", ["fcfs", "cyclic", "random_job", "bounded_wait", "hydra_code"]),
        ("partitions", ["iid", "dominant_label", "sharding", "label_shards", "dirichlet", "quantity_skew", "natural"]),
        ("profiles", ["ai_benchmark", "mobiperf", "hsdpa_bus"]),
    ],
)
def test_list_names_and_explains(what, names, capsys):
    sfl_sim("list", what)
    lines = capsys.readouterr().out.splitlines()
    for name in names:
        assert any(line.startswith(name) and len(line.split()) > 3 for line in lines)


def test_list_names_every_method_s_paper_its_year_and_its_options(capsys):
    sfl_sim("list", "methods")
    printed = " ".join(capsys.readouterr().out.split())
    for name, about in catalogue()["methods"].items():
        _, paper, *options = about.split("\n")
        is_cited = re.fullmatch(r"\w+ (et al\.|and \w+).* (19|20)\d\d", paper)
        assert is_cited, (
            f"{name}: the second paragraph of its module's docstring names no paper as 'Author et al. 2024'"
        )
        assert [option.partition(" ")[0] for option in options] == list(
            METHODS[METHOD_PRESETS[name].host if name in METHOD_PRESETS else name].Options.model_fields
        )
        assert f"{name} {' '.join(about.split())}" in printed


def test_the_layers_of_a_model_with_their_costs(my_nets, capsys):
    sfl_sim("list", "layers", "my_nets:make", "--input", "3x4x4", "--labels", "7", "--allow-code")
    title, data, _, *rows, _ = capsys.readouterr().out.splitlines()
    assert title.startswith("my_nets:make: 3 layers")
    assert data == "for samples of 3x4x4 and 7 labels"
    assert [row.split()[2] for row in rows] == ["12", "8", "7"]


def test_the_layers_of_a_model_of_the_zoo_without_saying_for_which_data(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("lenet5").mkdir()
    sfl_sim("list", "layers", "lenet5")
    assert "for samples of 1x28x28 and 10 labels" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["lenet"], "did you mean 'lenet5'?"),
        (["lenet5", "--input", "28"], "shape 28"),
        *((["lenet5", "--input", shape], f"(found {shape!r}") for shape in ("3x0", "٣x٣x٣", "")),
    ],
)
def test_a_model_that_cannot_be_shown_is_one_line(arguments, line, capsys):
    sfl_sim("list", "layers", *arguments, code=2)
    assert line in capsys.readouterr().err


@pytest.mark.pages
def test_the_report_of_stored_runs_can_be_made_again_and_side_by_side(scenario, tmp_path):
    sfl_sim(scenario, "-q", "--timing-only", "--out", "a")
    sfl_sim(scenario, "-q", "--timing-only", "--out", "b", "--set", "server.speedup=10")
    (tmp_path / "a" / "report.html").unlink()
    sfl_sim("report", "a")
    assert (tmp_path / "a" / "report.html").exists()
    sfl_sim("report", "a", "b", code=2)
    sfl_sim("report", "a", "b", "--out", "both.html")
    assert (tmp_path / "both.html").stat().st_size > 1e6
    sfl_sim("report", "a", "b", "--out", "both.html", "--plotly", "directory")
    assert (tmp_path / "both.html").stat().st_size < 1e6 < (tmp_path / "plotly.min.js").stat().st_size
    Path("thesis.html").write_text("mine")
    sfl_sim("report", "a", "--out", "thesis.html", code=2)
    assert Path("thesis.html").read_text() == "mine"
    sfl_sim("report", "a", "--plotly", "elsewhere", code=2)
    sfl_sim("report", "nowhere", code=2)


@pytest.fixture
def changed(scenario, tmp_path):
    """A run whose stored number of rounds somebody has changed."""
    sfl_sim(scenario, "-q", "--timing-only", "--out", "run")
    stored = tmp_path / "run" / "summary.json"
    stored.write_text(stored.read_text().replace('"rounds": 2', '"rounds": 3'))
    return tmp_path / "run"


def test_a_run_with_a_changed_figure_is_refused_where_no_page_warns_of_it(changed, capsys):
    for refused in ("report run --export tables", "report run --log mlflow=runs", "landscape run"):
        sfl_sim(*refused.split(), code=2)
        assert capsys.readouterr().err.startswith("sfl-sim: run: summary.json ")
    with pytest.raises(package.ScenarioError) as error:
        package.load("run")
    assert error.value.key == "folder"
    (changed / "SHA256SUMS").unlink()
    assert package.load("run").summary["rounds"].tolist() == [3, 3, 3]


@pytest.mark.pages
def test_a_changed_run_is_warned_of_on_its_page(changed):
    sfl_sim("report", "run")
    assert "summary.json is not what" in (changed / "report.html").read_text()


@pytest.mark.pages
def test_a_report_that_cannot_be_written_leaves_the_earlier_one_whole(scenario, tmp_path, monkeypatch, capsys):
    sfl_sim(scenario, "-q", "--timing-only", "--out", "run")
    before = (tmp_path / "run" / "report.html").read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("sfl_sim.store.files.os.fsync", full)
        sfl_sim("report", "run", code=2)
    assert "No space left on device" in capsys.readouterr().err
    assert (tmp_path / "run" / "report.html").read_bytes() == before
    assert not (tmp_path / "run" / "report.html.part").exists()


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("", "Is a directory"),
        ("folder", "Is a directory"),
        ("pipe", "no regular file"),  # it would be replaced, as /dev/null would
        ("tiny.yaml/page.html", "File exists"),
        ("tiny.yaml", ".html"),  # the scenario itself
        ("x" * 300, "name too long"),
        (os.fsdecode(b"\xff"), "UTF-8"),
    ],
)
def test_a_page_that_cannot_be_written_there_is_refused_first(path, told, scenario, tmp_path, capsys, monkeypatch):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr("sfl_sim.studies.partition_preview.preview", lambda study: pytest.fail("too late"))
    sfl_sim("check", scenario, "--partition", path, code=2)
    line = capsys.readouterr().err
    assert line.startswith("sfl-sim: --partition: ")
    assert told in line
    assert sorted(file.name for file in tmp_path.iterdir()) == ["folder", "pipe", "tiny.yaml"]


@pytest.mark.parametrize("command", ["report run --out run/summary.json", "landscape run --out run/rounds.html"])
def test_a_page_never_replaces_what_a_run_has_written(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    for name in ("summary.json", "rounds.parquet"):
        (tmp_path / "run" / name).write_text("precious")
    seal(tmp_path / "run", "*")
    sfl_sim(*command.split(), code=2)
    assert capsys.readouterr().err.startswith("sfl-sim: --out: ")
    assert damaged(tmp_path / "run") == []


def test_a_new_scenario_has_every_key_with_its_default(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sfl_sim("list", "keys")
    text = capsys.readouterr().out
    Path("mine.yaml").write_text(text)
    assert load("mine.yaml").base.model_copy(update={"name": None}) == Scenario()
    for key in ("cut", "uplink_bps", "max_wait_s", "stop", "on_nan"):
        assert re.search(rf"^ *(# )?{key}:", text, re.MULTILINE)
    Path("mine.yaml").write_text(text.replace("  # macs_per_s:", "  macs_per_s: 1e9", 1).replace("profile: ai_b", "# "))
    assert load("mine.yaml").base.clients.compute.macs_per_s == 1e9


@pytest.mark.parametrize("only", [("--open",), ("--format", "trace"), ("--log", "mlflow=store")])
def test_where_no_page_is_written_plotly_lies_nowhere(only, capsys):
    sfl_sim("report", "run", *only, "--plotly", "directory", code=2)
    assert "--plotly: " in capsys.readouterr().err


def test_plotly_lies_beside_a_benchmark_s_page_and_is_refused_for_a_list_of_runs(tmp_path, monkeypatch, capsys):
    page = tmp_path / "benchmark.html"
    monkeypatch.setattr("sfl_sim.cli.show._of_many_runs", lambda folder: (page.name, write))

    def write(folder, out):
        out.write_text(f"<script>\n{get_plotlyjs()}\n</script>")
        return out

    sfl_sim("report", tmp_path, "--plotly", "directory")
    assert page.stat().st_size < 1e6 < (tmp_path / "plotly.min.js").stat().st_size
    monkeypatch.setattr("sfl_sim.cli.show._of_many_runs", lambda folder: ("index.html", write))
    sfl_sim("report", tmp_path, "--plotly", "directory", code=2)
    assert "--plotly: " in capsys.readouterr().err
    assert not (tmp_path / "index.html").exists()


def test_a_trace_that_leaves_operations_out_says_how_many(scenario, monkeypatch, capsys):
    sfl_sim(scenario, "-q", "--timing-only", "--out", "run")
    sfl_sim("report", "run", "--format", "trace")
    assert not capsys.readouterr().err
    monkeypatch.setattr("sfl_sim.report.perfetto.MAX_EVENTS", 50)
    sfl_sim("report", "run", "--format", "trace")
    assert f" {len(pd.read_parquet('run/ops.parquet')) - 50} operations" in capsys.readouterr().err


def test_the_page_of_a_run_is_opened_by_folder_or_by_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    for page in ("reports/mine/report.html", "asked/whatif.html"):
        Path(page).parent.mkdir(parents=True)
        Path(page).touch()
    for folder in ("mine", "reports/mine", "asked"):
        sfl_sim("report", folder, "--open")
    assert opened == [(tmp_path / page).as_uri() for page in ("reports/mine/report.html",) * 2 + ("asked/whatif.html",)]
    sfl_sim("report", "nothing", "--open", code=2)
    assert "RUN: has no page" in capsys.readouterr().err


def test_a_what_if_is_asked_again_and_refused_where_a_run_is_needed(scenario, capsys):
    question = ("whatif", scenario, "--vary", "server.workers=1,2", "--set", "grid={}", "--out", "asked", "-q")
    sfl_sim(*question)
    capsys.readouterr()
    for command in ("report --export=tables", "reprice", "landscape", "report --log=mlflow=runs", "serve"):
        sfl_sim(*command.split(), "asked", code=2)
        said = capsys.readouterr().err
        assert said.startswith("sfl-sim: ")
        assert said.count("\n") == 1
    sfl_sim(*question)
    assert "server.workers" in pd.read_parquet("asked/points.parquet")


def test_scenarios_are_listed_on_a_screen_by_family_and_each_of_a_family_with_its_question(capsys):
    sfl_sim("list", "scenarios")
    families = {name: int(n) for name, n in re.findall(r"^(\w+) +(\d+) ", capsys.readouterr().out, re.MULTILINE)}
    assert len(families) <= 22
    about = catalogue()["scenarios"]
    assert sum(families.values()) == len(about)

    sfl_sim("list", "scenarios", "wire")
    printed = capsys.readouterr().out
    assert {name for name in about if name.startswith("wire/")} == {*re.findall(r"^wire/\w+", printed, re.MULTILINE)}
    assert about["wire/cuts"] in " ".join(printed.split())
    sfl_sim("list", "scenarios", "wires", code=2)
    assert "did you mean 'wire'?" in capsys.readouterr().err


def test_runs_of_a_name_are_told_apart(scenario, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    sfl_sim("list", "runs", code=2)
    for settings in ([], ["server.speedup=7"], ["server.speedup=7", "train.rounds=1"]):
        sfl_sim(scenario, "-q", "--timing-only", *sets(*settings))
    stopped = RuntimeError("the disk is gone")
    monkeypatch.setattr("sfl_sim.store.folder.RunFolder.join", lambda *_: (_ for _ in ()).throw(stopped))
    sfl_sim(scenario, "-q", "--timing-only", *sets("train.rounds=1"), code=1)
    capsys.readouterr()
    sfl_sim("list", "runs")
    told = [re.split("  +", line.strip()) for line in capsys.readouterr().out.splitlines()]
    assert [(name, state, *differs) for name, _, state, *differs in told] == [
        ("tiny", "finished"),
        ("tiny-2", "finished", "server.speedup 100.0 → 7.0"),
        ("tiny-3", "finished", "train.rounds 2 → 1"),
        ("tiny-4.partial", "not finished", "server.speedup 7.0 → 100.0"),
    ]
    sfl_sim("report", "reports")
    page = Path("reports", "index.html").read_text()
    assert re.findall(r'href="([^#"]+)"', page) == [f"{name}/report.html" for name in ("tiny", "tiny-2", "tiny-3")]
    assert all(text in page for text in ("server.speedup 100.0 → 7.0", "not finished"))
    sfl_sim("report", "reports", "--export", "tables", code=2)


def test_a_folder_in_the_place_of_a_scenario_and_a_misspelt_run_are_told_with_what_was_meant(scenario, capsys):
    sfl_sim(scenario, "-q", "--timing-only")
    for command in ("advise", "whatif", "serve"):
        sfl_sim(command, "reports/tiny", code=2)
        assert "reports/tiny/scenario.yaml" in capsys.readouterr().err
    for command in ("report tinny --export x", "reprice reports/tyny"):
        sfl_sim(*command.split(), code=2)
        assert "did you mean 'reports/tiny'?" in capsys.readouterr().err
