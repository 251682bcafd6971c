"""The embedded namespace: a Service-Bus-compatible broker."""
