"""The whole queue engine, on a disk that loses power, held to a plain model of what it may do.

``oracle`` says what is allowed, ``life`` drives an engine and tells the oracle everything that it shows, ``machine``
lets Hypothesis choose what happens, ``campaign`` runs many examples: ``python -m assay.sim.queue_model --examples
20000``.
"""
