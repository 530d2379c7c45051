"""Requests in, replies out: HTTP and gRPC servers, routes, the control plane, one `Service`.

What a method does lives in `tpu_service` and `compute_service`. The `grpc_` modules are optional.
"""
