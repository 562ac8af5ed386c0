"""Mutation by machine: small mechanical bugs in the broker, and which of its judges notice them.

``python -m mutation --sample 60 --seed 7`` copies the project below a temporary folder, plants one bug at a time in the
copy, runs the fast judges on it, and lists what nobody noticed.

No library fits: mutmut asks pytest alone, through trampolines inside of one process (nothing at the level of a module
or a class is mutated, and a broker in a process of its own has none of them); cosmic-ray changes the files of the tree
itself and knows one verdict of one command. Both drop no statement and swap no arguments.
"""
