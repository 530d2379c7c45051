# torch_xla asks for its device: pytorch/xla:torch_xla/_internal/__init__.py. What the worker or the
# user has set stays.
: "${PJRT_DEVICE:=${TPUKIT_EMULATED_DEVICES:+CPU}}"
export PJRT_DEVICE="${PJRT_DEVICE:-TPU}"
