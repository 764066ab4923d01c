"""Connectors: kvarve as the KV cache of an inference engine."""
