"""``assay storage``: shows, checks, prints, repairs, imports and exports data directories of three brokers."""
