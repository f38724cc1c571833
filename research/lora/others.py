"""Prints a text of plays without the roles of lora/roles: what its model reads before it is fine-tuned on them.

python -m research.lora.others tinyshakespeare.txt > others.txt
"""

import re
import sys
from collections.abc import Collection
from pathlib import Path

from sfl_sim.data.text import shakespeare


def without(text: str, roles: Collection[str]) -> str:
    """Drop the speeches of `roles` from blocks of a line `ROLE:` and a speech."""
    blocks = re.split(r"\n\s*\n", text)
    return "\n\n".join(block for block in blocks if block.partition("\n")[0].rstrip().removesuffix(":") not in roles)


if __name__ == "__main__":
    play = Path(sys.argv[1])
    roles = shakespeare(path=play, owners=8, samples_per_owner=8000).owner_names
    print(without(play.read_text(encoding="utf-8-sig"), roles))
