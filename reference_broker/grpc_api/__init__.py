"""The broker over gRPC: FluxMQ's and GoQueue's interfaces, health and reflection, in the broker's event loop.

What clients see stands in the ``.proto`` files of this folder. ``schema`` compiles them when the first listener that
speaks gRPC starts (or a client is made): by protoc, which comes in a package of the extra ``grpc``, in about 5 ms. So
nothing generated lies anywhere, is out of date in some checkout, or refuses to run with an older protobuf than its
compiler's; and who installs the broker alone needs no compiler.

``guard`` stands in front of every call: who asks (as over HTTP, :mod:`assay.reference_broker.api.callers`), how much is
under way, and what becomes of errors. Every call is served as a stream on both sides, which on the wire is the same: a
message of a client is read only once it is known who sends it. ``server`` is grpc.aio, one server for each listener.
"""
