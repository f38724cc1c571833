"""Every command and snippet of the site and of the README runs, in a quick form: one round, one seed, few requests.

The blocks of a page run one after another, in one folder, and share their Python names. A block with `title="FILE"` is
that file. Other YAML is part of a scenario and is checked. Comments before a block, which readers do not see, mark it:

- `<!-- not run: REASON -->`
- `<!-- in full -->`: the block runs as it stands, because the page tells its numbers.
- `<!-- before: COMMAND -->`: a command of an earlier page, whose results this one uses.
- `<!-- exits with 2 -->`: its command is refused.
- `<!-- needs: PACKAGE -->`: one that users may not have; without it, the page is skipped.
"""

import os
import re
import shlex
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from drawn import changed_files, drawn

from sfl_sim.cli import main
from sfl_sim.scenario import load as loading

pytestmark = pytest.mark.usefixtures("without_pages")

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"^(?P<marks>(?:<!--[^\n]*-->\n)*)(?P<indent> *)```(?P<language>\w*)(?P<rest>[^\n]*)\n(?P<text>.*?)^(?P=indent)```",
    re.DOTALL | re.MULTILINE,
)
REQUESTS = 100


class Block(NamedTuple):
    """A block of code of a page, with the marks before it."""

    language: str
    text: str
    title: str | None
    marks: dict[str, str]


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page that can be run, written or checked."""
    blocks = []
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        title = re.search(r'title="([^"]+)"', block["rest"])
        text = re.sub(rf"^{block['indent']}", "", block["text"], flags=re.MULTILINE)
        marks = dict(re.findall(r"<!-- ([\w ]+)(?:: (.*?))? -->", block["marks"]))
        blocks.append(Block(block["language"], text, title and title[1], marks))
    return [block for block in blocks if block.title or block.language in ("sh", "python", "yaml")]


STORIES = {page.relative_to(ROOT).as_posix(): blocks for page in PAGES if (blocks := blocks_of(page))}


def in_short(study):
    """Let a function that makes studies make them of one round, one seed and few requests."""

    def make(base, *others):
        changed = {"train": base.train.model_copy(update={"rounds": 1}), "repeats": 1}
        if base.data.name == "digits" and base.data.partition.kind not in ("indices", "dirichlet"):
            changed["data"] = base.data.model_copy(update={"train_samples": 300, "test_samples": 100})
        if base.serving:
            changed["serving"] = base.serving.model_copy(update={"requests": REQUESTS})
        return study(base.model_copy(update=changed), *others)

    return make


def run_shell(text: str) -> None:
    """Run the commands of a block: sfl-sim in this process, which is soon done, anything else in a shell."""
    for command in text.replace("\\\n", " ").splitlines():
        words = shlex.split(command, comments=True)
        if words[:1] == ["sfl-sim"] and ">" not in words:
            main(words[1:])
        elif words:
            subprocess.run(command, shell=True, check=True)


def cut_is_decided(names):
    """Check what the page on cuts tells of its own numbers."""
    assert names["best"]["cut"] == "conv3"
    assert names["by_cut"].idxmin().to_dict() == {0.1: "conv3", 1.0: "conv3", 10.0: "conv2", 100.0: "conv1"}
    assert names["trained"].summary["accuracy"].nunique() == 1
    assert names["points"]["round_s"].round(2).tolist() == [62.15, 35.86, 30.57]
    assert names["faster"].summary["time_to_accuracy_s"].round().tolist() == [57, 65]


def tuning_has_pruned(names):
    """Check that Optuna has pruned and kept trials, and that the sweep has logged each of its own."""
    rounds = {"COMPLETE": [], "PRUNED": []}
    for trial in names["study"].trials:
        rounds[trial.state.name].append(len(trial.intermediate_values))
    assert {*rounds["COMPLETE"]} == {names["SEEDS"] * names["ROUNDS"]}
    assert max(rounds["PRUNED"]) < names["ROUNDS"]
    assert len(list(Path("reports/swept").iterdir())) == len(list(Path("wandb").glob("offline-run-*"))) == 2


def the_array_is_taken(names):
    """Check that the last job of SLURM's page has trained nothing."""
    told = Path("slurm-2.out").read_text()
    taken = re.findall(r"reused from (\S+)", told)
    assert sorted(taken) == [f"reports/seed-{seed}" for seed in (0, 0, 1, 1, 2, 2)]
    assert "round 1/3" not in told


DECIDES = {
    "docs/tutorial/3-where-to-cut.md": cut_is_decided,
    "docs/howto/faster.md": the_array_is_taken,
    "docs/howto/tune.md": tuning_has_pruned,
}


@pytest.fixture
def services(page, tmp_path_factory, monkeypatch):
    """Stand-ins for what pages have elsewhere: a cluster's sbatch, and the server of W&B, which sweeps 0.01 and 0.1."""
    programs = tmp_path_factory.mktemp("programs")
    for name, words in (("sbatch", ROOT / "tests/support/sbatch.py"), ("sfl-sim", "-m sfl_sim")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    if page != "docs/howto/tune.md":
        return
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")

    def agent(sweep, function, count):
        for rate in (0.01, 0.1):
            with monkeypatch.context() as patch:
                patch.setattr("wandb.init", partial(wandb.init, config={"lr": rate}))
                function()

    monkeypatch.setattr("wandb.agent", agent)
    monkeypatch.setattr("wandb.sweep", lambda sweep, project: project)


def stories():
    """Return the pages; those that have changed are drawn, and a tenth of all."""
    changed = changed_files()
    chosen = {*STORIES} if changed is None else {*changed, *drawn([*STORIES], len(STORIES) // 10, "pages")}
    return [pytest.param(page, marks=[pytest.mark.drawn] if page in chosen else []) for page in STORIES]


@pytest.mark.night
@pytest.mark.parametrize("page", stories())
def test_what_a_page_shows_runs(page, tmp_path, monkeypatch, services):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    modules = set(sys.modules)
    names: dict[str, object] = {}
    for block in STORIES[page]:
        if "not run" in block.marks:
            continue
        if "needs" in block.marks:
            pytest.importorskip(block.marks["needs"])
        with monkeypatch.context() as patch:
            if "in full" not in block.marks:
                patch.setattr(loading, "_study", in_short(loading._study))
            run_shell(block.marks.get("before", ""))
            if block.title:
                Path(block.title).write_text(block.text, encoding="utf-8")
            elif block.language == "sh":
                refused = "exits with 2" in block.marks
                with pytest.raises(SystemExit, match="2") if refused else nullcontext():
                    run_shell(block.text)
            elif block.language == "yaml":
                Path("part.yaml").write_text(block.text, encoding="utf-8")
                loading.load("part.yaml")
            else:
                exec(block.text, names)
    if page in DECIDES:
        DECIDES[page](names)
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", None) and tmp_path in Path(sys.modules[name].__file__).parents:
            del sys.modules[name]
