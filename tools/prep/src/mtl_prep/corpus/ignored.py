"""What the .gitignore files of a directory leave out, as git reads them: the deepest file that knows decides.

Only files below the directory that was named count: a corpus may lie in a repository that ignores it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

GITIGNORE = ".gitignore"


@dataclass(frozen=True)
class Ignored:
    """The rules that hold in a directory: (directory, patterns) from the named directory down."""

    rules: tuple[tuple[Path, Any], ...] = ()

    def within(self, directory: Path) -> "Ignored":
        """The rules in a directory below, with its own .gitignore if it has one."""
        file = directory / GITIGNORE
        if not file.is_file():
            return self
        from pathspec import GitIgnoreSpec

        lines = file.read_text("utf-8", "replace").splitlines()
        return Ignored((*self.rules, (directory, GitIgnoreSpec.from_lines(lines))))

    def __contains__(self, path: Path) -> bool:
        """Whether the path is left out; a directory must exist as such."""
        end = "/" if self.rules and path.is_dir() else ""
        for directory, patterns in reversed(self.rules):
            verdict = patterns.check_file(path.relative_to(directory).as_posix() + end).include
            if verdict is not None:
                return bool(verdict)
        return False
