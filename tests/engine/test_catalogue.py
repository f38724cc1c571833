"""catalogue.json, by which `sfl-sim list` and `sfl-sim schema` answer without the code that it describes."""

import json

from sfl_sim.engine.catalogue import FILE, described


def test_it_says_what_the_code_says():
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    assert stored == json.loads(json.dumps(described())), "write it anew: python -m sfl_sim.engine.catalogue"
