"""Requests in, replies out: HTTP and gRPC servers, routes, the control plane, one `Service`.

The methods themselves are in `tpu_service` and `compute_service`. Only gRPC needs the `grpc_`
modules.
"""
