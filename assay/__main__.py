"""``python -m assay`` is ``assay``."""

from assay.cli import main

main()
