"""A story that is told with a hall that is a process of its own, as people have it."""

from __future__ import annotations

import os
import shutil
import signal
from abc import abstractmethod
from typing import TYPE_CHECKING

from guildhall.cli.story import Story
from guildhall.core.errors import GuildError
from guildhall.core.paths import Home
from guildhall.hall.client.discovery import find, process_of, stop

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# Whatever the person's own git is told to do at a commit has no part in this.
GIT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@shop.example",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@shop.example",
}


class HallStory(Story):
    """No hall is left when the story is told, or cannot be told to its end."""

    repository = True  # it plays in one

    def __init__(self, top: Path, name: str, more: Mapping[str, str] | None = None) -> None:
        super().__init__(top, name, more or {})
        self._hall = Home(self.home)

    def tell(self) -> None:
        if self.repository and shutil.which("git") is None:
            raise GuildError("this plays in a git repository, and there is no git here", hint="guild demo --office")
        try:
            self.play()
        finally:
            if (pid := process_of(self._hall)) is not None:
                stop(pid)

    @abstractmethod
    def play(self) -> None:
        """What happens, from the beginning to the end."""

    def kill(self) -> bool:
        """Ends the hall as a power cut would, and shows it; whether there was one."""
        if (hall := find(self._hall)) is None:
            return False
        self.show(f"$ kill -9 {hall.pid}")
        os.kill(hall.pid, signal.SIGKILL)
        return True
