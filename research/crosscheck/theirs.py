"""Others' code as modules: imported from their checkout with stand-ins for what it lacks, then forgotten."""

import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any
from unittest.mock import patch


@contextmanager
def within(checkout: Path, stand_ins: Mapping[str, Any], argv: Sequence[object] = ()) -> Iterator[None]:
    """Let imports find `checkout` and the `stand_ins`, in an empty working folder, with `argv`, and print nothing."""
    checkout = checkout.resolve()
    before = {name: sys.modules[name] for name in stand_ins if name in sys.modules}
    with (
        patch.object(sys, "path", [str(checkout), *sys.path]),
        patch.object(sys, "argv", ["main", *map(str, argv)]),
        patch.object(sys, "dont_write_bytecode", True),
        TemporaryDirectory() as folder,
        chdir(folder),
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
    ):
        sys.modules.update(stand_ins)
        try:
            yield
        finally:
            for name, module in sys.modules.copy().items():
                place = getattr(module, "__file__", None) or getattr(module, "__path__", "")  # of a folder
                if name in stand_ins or str(checkout) in str(place):
                    del sys.modules[name]
            sys.modules.update(before)


def module_of(name: str, **contents: Any) -> ModuleType:
    """Make a module with the given contents."""
    module = ModuleType(name)
    vars(module).update(contents)
    return module
