"""The routes by area; each module has one :class:`assay.reference_broker.http.areas.Area`, or two."""
