"""The conformance cases: one package per specification, one module per area."""
