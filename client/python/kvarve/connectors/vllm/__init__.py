"""kvarve for vLLM: KvarveConnector, and the plugin that makes vLLM know its name.

Nothing of vLLM or torch is imported here: vLLM imports this package in every process that it starts.
"""

import os

NAME = "KvarveConnector"
MODULE = "kvarve.connectors.vllm.connector"
_OFF = ("", "0", "false", "no", "off")


def register() -> None:
    """Entry point of the group `vllm.general_plugins`; may be called more than once."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if NAME not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(NAME, MODULE, NAME)
    if os.environ.get("KVARVE", "").lower() not in _OFF:
        _use_by_default()


def _use_by_default() -> None:
    """KVARVE=1: an engine without a KV-transfer configuration of its own gets this connector."""
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import EngineArgs

    create = EngineArgs.create_engine_config
    if getattr(create, "_kvarve", False):
        return

    def create_engine_config(self, *args, **kwargs):
        offloads = getattr(self, "kv_offloading_size", None) is not None
        if self.kv_transfer_config is None and not offloads:
            self.kv_transfer_config = KVTransferConfig(kv_connector=NAME, kv_role="kv_both")
        return create(self, *args, **kwargs)

    create_engine_config._kvarve = True  # type: ignore[attr-defined]
    EngineArgs.create_engine_config = create_engine_config  # type: ignore[method-assign]
