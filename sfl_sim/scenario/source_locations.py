"""Places where the keys of a scenario were given, so that errors can name file and line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from sfl_sim.errors import ScenarioError


@dataclass(frozen=True)
class SourceLine:
    """A line of a file; both None if the scenario came from Python, line None for `--set` and `overrides`."""

    file: str | None = None
    line: int | None = None


@dataclass(frozen=True)
class SourceLocations:
    """The places of dotted keys, in the order in which they were given."""

    whole: SourceLine = SourceLine()
    keys: Mapping[str, SourceLine] = field(default_factory=dict)

    def of(self, key: str | None) -> SourceLine:
        """Give the place of `key`, else of the first key below it, else of the nearest key above it."""
        known = self._known(key)
        return self.whole if known is None else self.keys[known]

    def rank(self, key: str | None) -> int:
        """Give the position of `key` in the order in which keys were given."""
        known = self._known(key)
        return -1 if known is None else list(self.keys).index(known)

    def over(self, layer: Mapping[str, SourceLine]) -> SourceLocations:
        """Return these places after the keys of `layer`, and all below them, were set at another place."""
        kept = {
            key: place
            for key, place in self.keys.items()
            if not any(key == new or key.startswith(f"{new}.") for new in layer)
        }
        return SourceLocations(self.whole, kept | dict(layer))

    def located(self, error: ScenarioError) -> ScenarioError:
        """Add file and line of its key to an error that has none."""
        if error.file is not None:
            return error
        place = self.of(error.key)
        return ScenarioError(
            error.problem,
            key=error.key,
            found=error.found,
            allowed=error.allowed,
            file=place.file,
            line=place.line,
        )

    @contextmanager
    def locating(self) -> Iterator[None]:
        """Add file and line of its key to an error that is raised within the context."""
        try:
            yield
        except ScenarioError as error:
            raise self.located(error) from error

    def _known(self, key: str | None) -> str | None:
        if not key or key in self.keys:
            return key or None
        below = next((known for known in self.keys if known.startswith(f"{key}.")), None)
        return below or self._known(key.rpartition(".")[0])
