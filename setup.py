"""The source distribution holds the links ``assay/<part>`` as links, as a checkout does; else see pyproject.toml."""

import os
from collections.abc import Iterable
from pathlib import Path

from setuptools import setup
from setuptools.command.sdist import sdist

LINKS = [path for path in Path("assay").iterdir() if path.is_symlink()]


class SourceDistribution(sdist):
    """Leaves out what is reached through a link: it is there by its own path."""

    def make_release_tree(self, base_dir: str, files: Iterable[str]) -> None:
        own = [name for name in files if not any(link in Path(name).parents for link in LINKS)]
        super().make_release_tree(base_dir, own)
        for link in LINKS:
            os.symlink(os.readlink(link), Path(base_dir) / link)


setup(cmdclass={"sdist": SourceDistribution})
