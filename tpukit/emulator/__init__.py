"""A Cloud TPU API and the firewall API on this machine, whose workers are real SSH servers.

The contract: `process.daemon` starts, finds and stops an emulator, `control_client.EmulatorClient`
drives one, `pytest_plugin` offers one to tests; all else is private. Requests pass from `api` to
`tpu_service` and `compute_service` over the state in `core`; `faults` spoils them on request. What
listens for SSH is in `workers`, which the APIs know by `workers.worker_host` alone. No wire code is
shared with `tpukit.cloud`, so that clients which are not ours judge both.
"""
