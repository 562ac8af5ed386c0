"""Clients of the broker's faces of requests and answers, for Python programs, and for the command line.

``HttpQueues`` needs the standard library alone, ``GrpcQueues`` the extra ``grpc``. Methods of both are called alike,
and give and raise the same (``shared``); over gRPC each is a coroutine.
"""
