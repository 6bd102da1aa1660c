"""Facts about GPUs, one TOML file per target, as package data."""
