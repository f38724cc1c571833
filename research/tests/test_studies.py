"""Studies name all that their verdicts depend on, so that later defaults change no verdict."""

from pathlib import Path

import pytest
import yaml

SCENARIOS = Path(__file__).parents[2] / "scenarios"
IN_SECONDS = (
    "cuts/*",
    "edges/cloud*",
    "forgetting/frontier*",
    "harmony/load",
    "leakage/*",
    "lora/[!p]*",
    "momentum/*",
    "replay/*",
    "wire/*",
)
"""Studies that judge time, or in which arrival at the server decides what is learned."""
TIMED = [file for pattern in IN_SECONDS for file in sorted(SCENARIOS.glob(f"{pattern}.yaml"))]
PINNED = {
    ("clients", "compute"): {"profile", "cost"},
    ("clients", "network"): {"profile", "trace", "latency_s", "up_down_correlation"},
    ("server",): {"speedup", "workers", "call_s"},
}


@pytest.mark.parametrize("file", TIMED, ids=lambda file: f"{file.parent.name}/{file.stem}")
@pytest.mark.parametrize("section", PINNED, ids=".".join)
def test_a_study_that_judges_seconds_names_devices_links_and_server(file, section):
    given = yaml.safe_load(file.read_text())
    for name in section:
        given = given[name]
    assert given.keys() >= PINNED[section]
