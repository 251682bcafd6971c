"""Configuration of namespaces: TOML files, Microsoft's Config.json, and profiles."""
