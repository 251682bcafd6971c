"""The commands of `twinbus`, one module per command or group of commands."""
