"""Notebooks as text (jupytext ``py:percent``); ``assay spark notebook`` executes them. Not meant to be imported."""
