"""The whole queue engine, on a disk that loses power, held to a plain model of what it may do.

``oracle`` says what is allowed, ``life`` drives an engine and tells the oracle everything that it shows, ``machine``
lets Hypothesis choose what happens, ``campaign`` runs many examples: ``python -m assay.sim.queue_model --examples
20000``.

Model: ``assay.sim.queue_model`` lets Hypothesis choose what happens to the queue engine, transactions over two queues,
delays, claims, resets, settlements of several, messages of 100 KB, changed limits and power losses included, and holds
it to sets of what is allowed (``oracle``, at most 400 lines). ``python -m assay.sim.queue_model --examples 20000 --seed
1 --workers 2`` runs many examples.
"""
