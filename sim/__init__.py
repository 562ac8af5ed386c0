"""The broker's own code on a simulated network, disk and clock.

Proof. Storage is proved by losing power. ``assay.sim.power_cuts`` stops a simulated disk before each of its operations
and goes through what may be left: any prefix, all but one, a torn sector, single files, reordered folder entries;
``assay.sim.log_life`` and ``assay.sim.group_life`` know what must be found then. Index files, the mark and
``cleaner.json`` are hints: every bit of them may flip without changing an answer. ``tests/storage/test_log_model.py``
holds a log to a dict of records whatever is done to it, ``test_kill_loop.py`` kills real processes,
``assay.sim.errno_life`` makes any call of the disk fail with any error, and ``conformance/mutants/storage*.py`` and
``refusing_disk.py`` hold the bugs that these checks are judged by.
"""
