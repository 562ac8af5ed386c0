"""Mutation by machine: small mechanical bugs in the broker, and which of its judges notice them.

``python -m mutation --sample 60 --seed 7`` draws bugs, asks each judge for what executes them, and lists what nobody
noticed. A judgement is a command in a process that is forked from one that has imported broker, tests and judges, and
there the bug takes the place of the code it changes (:mod:`mutation.planting`): a kill takes a second.

No library fits: mutmut asks pytest alone, through trampolines inside of one process (nothing at the level of a module
or a class is mutated, and a broker in a process of its own has none of them); cosmic-ray changes the files of the tree
itself and knows one verdict of one command. Both drop no statement and swap no arguments.
"""
