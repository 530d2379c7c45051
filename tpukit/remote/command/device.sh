# torch_xla asks for its device: pytorch/xla:torch_xla/_internal/__init__.py. What the worker or the
# user has set stays.
if [ -z "${PJRT_DEVICE:-}" ]; then
    if [ -n "${TPUKIT_EMULATED_DEVICES:-}" ]; then PJRT_DEVICE=CPU; else PJRT_DEVICE=TPU; fi
    export PJRT_DEVICE
fi
