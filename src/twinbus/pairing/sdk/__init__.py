"""Works around gaps of the SDK's public API; only this package reads its private attributes."""
