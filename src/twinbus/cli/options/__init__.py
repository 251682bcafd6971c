"""Options that several commands share: namespaces, quantities, storage, Spark and settings."""
