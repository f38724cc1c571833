"""The notebook of the tutorial: it runs as it is, and shows what is stored in it."""

import json
from pathlib import Path

import pytest
from from_code import DOCS, notebook_page

NOTEBOOK = DOCS / "tutorial" / "5-in-a-notebook.ipynb"


def test_the_notebook_runs_and_shows_what_is_stored(tmp_path: Path) -> None:
    reason = "nbclient and ipykernel are not installed: pip install nbclient ipykernel"
    nbclient = pytest.importorskip("nbclient", reason=reason)
    pytest.importorskip("ipykernel", reason=reason)
    nbformat = pytest.importorskip("nbformat", reason=reason)
    stored = nbformat.read(NOTEBOOK, as_version=4)
    run = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(run, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    for cell, told in zip(run.cells, stored.cells, strict=True):
        outputs, expected = (each.get("outputs", []) for each in (cell, told))
        assert [sorted(output.get("data", ["text"])) for output in outputs] == [
            sorted(output.get("data", ["text"])) for output in expected
        ]
    progress, table, figure = (output["data"] for cell in run.cells[:4] for output in cell.get("outputs", []))
    assert len(progress["text/plain"].splitlines()) == 1
    assert "splitfed_v2" in table["text/html"]
    assert [line["name"] for line in figure["application/vnd.plotly.v1+json"]["data"][:2]] == [
        "splitfed_v1",
        "splitfed_v2",
    ]


def test_the_site_has_the_texts_the_code_the_table_and_the_figure_of_the_notebook() -> None:
    page = notebook_page(NOTEBOOK)
    assert page.startswith("# 5. In a notebook")
    assert "```python\nimport sfl_sim" in page
    assert "<table" in page
    assert "Plotly.newPlot" in page
    assert "\n\n" not in page[page.index("<table") : page.index("</table>")]  # Markdown would end the table there
    assert all(cell["cell_type"] in ("markdown", "code") for cell in json.loads(NOTEBOOK.read_text())["cells"])
