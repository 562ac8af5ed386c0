"""The command line of operators: ``assay queue``, ``group``, ``produce``, ``consume`` and others, over HTTP alone.

A resource is a row of ``resources`` with verbs; a verb (``verbs``) is a request and its columns, or a function for
what takes several. ``contexts`` says which broker is meant and who asks; ``shown`` writes tables, JSON and YAML;
``ends`` makes exit statuses of what goes wrong. ``produce``, ``consume`` and ``top`` are verbs that go on for a while.
``cli`` makes commands of all of them.
"""
