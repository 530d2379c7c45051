"""Where pytest learns of the fixtures `tpu_emulator` and `emulated_tpu`."""

pytest_plugins = ["tpukit.emulator.pytest_plugin"]
