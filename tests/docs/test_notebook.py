"""The notebook runs as it stands, and decides what it says."""

import json
from pathlib import Path

import plotly.graph_objects as go

NOTEBOOK = Path(__file__).parents[2] / "docs" / "cut_layer.ipynb"


def test_the_notebook_comes_to_its_decision(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(go.Figure, "show", lambda figure: None)
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in cells)
    found: dict[str, object] = {}
    for cell in cells:
        exec("".join(cell["source"]), found)  # our own file, as a reader's kernel would
    assert found["best"]["cut"] == "conv3"
    assert found["by_cut"].idxmin().to_dict() == {0.1: "conv3", 1.0: "conv3", 10.0: "conv2", 100.0: "conv1"}
    assert found["trained"].summary["accuracy"].nunique() == 1
