"""kvarve: keep the KV cache of inference engines, block by block, and give it back.

    client = kvarve.Client("unix:///run/kvarve/kvarved.sock")
    space = client.namespace(model="m", model_digest="d", element_type=kvarve.ElementType.BF16, ...)
    keys = kvarve.chain_keys(tokens, block_tokens=128)
    space.put(keys, blocks)
    blocks = space.get(keys)      # copies; a miss is a shorter list
    with space.view(keys) as v:   # in place: v[0] is a read-only memoryview that keeps its lease
        ...

A miss is an answer. Everything else that goes wrong raises kvarve.Error, whose `code` says what kind it is.
"""

from kvarve._native import (CHAIN_HASH_VERSION, Block, ChainHasher, ElementType, Engine, Error, Grants, Keys, Namespace,
                            View, block_bytes, chain_keys, namespace_id)
from kvarve.attention import attend, key_diff, merge_states
from kvarve.client import Client
from kvarve.events import Event, Events
from kvarve.outcomes import Outcomes

__version__ = "0.1.0"
__all__ = ["CHAIN_HASH_VERSION", "Block", "ChainHasher", "Client", "ElementType", "Engine", "Error", "Event", "Events",
           "Grants", "Keys", "Namespace", "Outcomes", "View", "attend", "block_bytes", "chain_keys", "key_diff", "merge_states", "namespace_id"]
