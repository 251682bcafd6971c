"""What the SDK's public API cannot do: the only code that reads private attributes of the SDK."""
