"""kvarve for vLLM: KvarveConnector, and the plugin that makes vLLM know its name.

Nothing of vLLM or torch is imported here: vLLM imports this package in every process that it starts.
"""

import logging
import os

NAME = "KvarveConnector"
MODULE = "kvarve.connectors.vllm.connector"
_OFF = ("", "0", "false", "no", "off")
_HYBRID = "the model needs vLLM's hybrid KV cache manager: it has several KV cache groups"


def register() -> None:
    """Entry point of the group `vllm.general_plugins`; may be called more than once."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.engine.arg_utils import EngineArgs

    from kvarve import compat
    if NAME not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(NAME, MODULE, NAME)
    compat.wrap(EngineArgs, "create_engine_config", _configure)


def _configure(create, arguments, *args, **kwargs):
    """KVARVE=1: an engine without a KV-transfer configuration of its own gets this connector. An engine whose model mixes
    attention with other state gets none, though it was configured: vLLM turns its hybrid manager off for a connector
    without group support, and then such an engine does not start."""
    from vllm.config import KVTransferConfig

    from kvarve import settings as reader
    from kvarve.connectors.vllm.settings import Settings
    offloads = getattr(arguments, "kv_offloading_size", None) is not None
    if os.environ.get("KVARVE", "").lower() not in _OFF and arguments.kv_transfer_config is None and not offloads:
        arguments.kv_transfer_config = KVTransferConfig(kv_connector=NAME, kv_role="kv_both")
    config, transfer = create(arguments, *args, **kwargs), arguments.kv_transfer_config
    if getattr(transfer, "kv_connector", None) != NAME or not config.model_config.is_hybrid:
        return config
    if reader.read(Settings, transfer.kv_connector_extra_config).strict:
        raise RuntimeError(f"kvarve is set to strict and cannot be used: {_HYBRID}")
    logging.getLogger("vllm.kvarve").warning("kvarve is passive, the engine serves without it: %s", _HYBRID)
    arguments.kv_transfer_config = None
    return create(arguments, *args, **kwargs)
