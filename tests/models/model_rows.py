# SPDX-License-Identifier: Apache-2.0
"""The architectures of the matrix: a class of transformers and a tiny configuration for each."""

from dataclasses import dataclass, field
from typing import Any

_TOKENS = {"vocab_size": 101, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
# Sizes that no kernel likes: nothing is a power of two but the heads.
_DEEP = {"hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 2}
_BERT = _TOKENS | _DEEP | {"intermediate_size": 60, "max_position_embeddings": 40}
_LLAMA = _BERT | {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 12}
_GATED = _BERT | {"num_attention_heads": 3, "num_key_value_heads": 1}
_GPT2 = _TOKENS | {"n_embd": 36, "n_layer": 2, "n_head": 2, "n_positions": 40}
_BART = _TOKENS | {
    "d_model": 36, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 60, "decoder_ffn_dim": 60,
    "max_position_embeddings": 40, "decoder_start_token_id": 2, "forced_eos_token_id": 2,
}  # fmt: skip
_T5 = _TOKENS | {
    "d_model": 36, "d_kv": 12, "d_ff": 60, "num_layers": 2, "num_decoder_layers": 2,
    "num_heads": 3, "decoder_start_token_id": 0, "relative_attention_num_buckets": 8,
}  # fmt: skip
_IMAGE = _DEEP | {"intermediate_size": 60, "image_size": 30, "patch_size": 6}
_TEXT_TOWER = _BERT | {"projection_dim": 20}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 28}
_SWIN = {
    "image_size": 32, "patch_size": 4, "embed_dim": 12, "depths": [1, 2], "num_heads": [1, 2],
    "window_size": 4,
}  # fmt: skip
_STAGES = {
    "embedding_size": 12, "hidden_sizes": [12, 20], "depths": [1, 2], "image_size": 32,
    "num_stages": 2,
}  # fmt: skip
_SOUND = _DEEP | {
    "vocab_size": 31, "intermediate_size": 60, "conv_dim": [20, 20, 20],
    "conv_stride": [5, 4, 4], "conv_kernel": [10, 3, 3], "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_MAMBA = _TOKENS | {"hidden_size": 36, "num_hidden_layers": 2, "state_size": 8}


@dataclass(frozen=True)
class Architecture:
    """A row of the matrix.

    Attributes:
        kind: what it is for, a heading of the page.
        title: what people call it.
        model: name of the class.
        settings: of its configuration.
    """

    kind: str
    title: str
    model: str
    settings: dict[str, Any] = field(hash=False)


def _rows(kind: str, *rows: tuple[str, str, dict[str, Any]]) -> tuple[Architecture, ...]:
    return tuple(Architecture(kind, *row) for row in rows)


ARCHITECTURES = (
    *_rows(
        "Encoders",
        ("BERT", "BertForSequenceClassification", _BERT),
        ("RoBERTa", "RobertaForMaskedLM", _BERT | {"pad_token_id": 1}),
        ("DistilBERT", "DistilBertModel", _TOKENS | {
            "dim": 36, "n_layers": 2, "n_heads": 2, "hidden_dim": 60,
            "max_position_embeddings": 40}),
        ("XLM-R", "XLMRobertaModel", _BERT | {"pad_token_id": 1}),
        ("CamemBERT", "CamembertForTokenClassification", _BERT | {"pad_token_id": 1}),
        ("ELECTRA", "ElectraForSequenceClassification", _BERT | {"embedding_size": 20}),
        ("MPNet", "MPNetModel", _BERT | {
            "pad_token_id": 1, "bos_token_id": 0}),
        ("ModernBERT", "ModernBertForMaskedLM", _BERT | {
            "cls_token_id": 1, "sep_token_id": 2, "local_attention": 6,
            "global_attn_every_n_layers": 2}),
        ("DeBERTa", "DebertaModel", _BERT | {
            "relative_attention": True, "pos_att_type": ["c2p", "p2c"],
            "max_relative_positions": 16}),
        ("DeBERTa-v2", "DebertaV2ForSequenceClassification", _BERT | {
            "relative_attention": True, "position_buckets": 8, "pos_att_type": ["c2p", "p2c"],
            "norm_rel_ebd": "layer_norm", "share_att_key": True}),
        ("ALBERT", "AlbertModel", _BERT | {"embedding_size": 20}),
        ("NomicBERT", "NomicBertModel", _BERT),
        ("ConvBERT", "ConvBertModel", _BERT | {
            "embedding_size": 36, "num_attention_heads": 4, "head_ratio": 2,
            "conv_kernel_size": 3}),
        ("SqueezeBERT", "SqueezeBertModel", _BERT | {
            "embedding_size": 36, "q_groups": 2, "k_groups": 2, "v_groups": 2,
            "post_attention_groups": 1, "intermediate_groups": 2, "output_groups": 2}),
        ("Funnel", "FunnelBaseModel", _TOKENS | {
            "d_model": 36, "n_head": 3, "d_head": 12, "d_inner": 60, "block_sizes": [1, 1],
            "num_decoder_layers": 1}),
        ("XLNet", "XLNetModel", _TOKENS | {
            "d_model": 36, "n_layer": 2, "n_head": 3, "d_inner": 60}),
        ("ESM", "EsmModel", _BERT | {"position_embedding_type": "rotary", "mask_token_id": 4}),
        ("EuroBERT", "EuroBertModel", _LLAMA),
    ),
    *_rows(
        "Decoders",
        ("Llama", "LlamaForCausalLM", _LLAMA),
        ("Mistral", "MistralForCausalLM", _LLAMA | {"sliding_window": 5}),
        ("Mixtral", "MixtralForCausalLM", _LLAMA | {
            "num_local_experts": 3, "num_experts_per_tok": 2}),
        ("Qwen2", "Qwen2ForCausalLM", _GATED),
        ("Qwen3", "Qwen3ForCausalLM", _LLAMA | {"tie_word_embeddings": True}),
        ("Qwen3-MoE", "Qwen3MoeForCausalLM", _LLAMA | _EXPERTS | {"num_experts": 3}),
        ("Qwen2-MoE", "Qwen2MoeForCausalLM", _GATED | _EXPERTS | {
            "num_experts": 3, "shared_expert_intermediate_size": 28}),
        ("Gemma", "GemmaForCausalLM", _LLAMA),
        ("Gemma 2", "Gemma2ForCausalLM", _LLAMA | {"sliding_window": 5}),
        ("Gemma 3", "Gemma3ForCausalLM", _LLAMA | {"sliding_window": 5}),
        ("Phi", "PhiForCausalLM", _BERT | {"num_attention_heads": 3}),
        ("Phi-3", "Phi3ForCausalLM", _GATED | {"original_max_position_embeddings": 40}),
        ("SmolLM3", "SmolLM3ForCausalLM", _GATED | {"no_rope_layer_interval": 2}),
        ("OLMo", "OlmoForCausalLM", _GATED),
        ("OLMo 2", "Olmo2ForCausalLM", _GATED),
        ("OLMoE", "OlmoeForCausalLM", _GATED | {"num_experts": 3, "num_experts_per_tok": 2}),
        ("Granite", "GraniteForCausalLM", _GATED),
        ("Granite-MoE", "GraniteMoeForCausalLM", _GATED | {
            "num_local_experts": 3, "num_experts_per_tok": 2}),
        ("gpt-oss", "GptOssForCausalLM", _LLAMA | {
            "num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": 5}),
        ("StableLM", "StableLmForCausalLM", _GATED | {"partial_rotary_factor": 0.5}),
        ("Starcoder2", "Starcoder2ForCausalLM", _GATED),
        ("Cohere", "CohereForCausalLM", _GATED),
        ("GPT-NeoX", "GPTNeoXForCausalLM", _BERT),
        ("GPT-2", "GPT2LMHeadModel", _GPT2),
        ("GPT-J", "GPTJForCausalLM", _GPT2 | {"rotary_dim": 6}),
        ("GPT-Neo", "GPTNeoForCausalLM", _TOKENS | {
            "hidden_size": 36, "num_layers": 2, "num_heads": 2, "max_position_embeddings": 40,
            "attention_types": [[["global", "local"], 1]], "window_size": 5}),
        ("GPTBigCode", "GPTBigCodeForCausalLM", _GPT2),
        ("OPT", "OPTForCausalLM", _TOKENS | _DEEP | {
            "ffn_dim": 60, "max_position_embeddings": 40, "word_embed_proj_dim": 36}),
        ("BLOOM", "BloomForCausalLM", _TOKENS | {"hidden_size": 36, "n_layer": 2, "n_head": 2}),
        ("Falcon", "FalconForCausalLM", _BERT),
        ("MPT", "MptForCausalLM", _TOKENS | {
            "d_model": 36, "n_heads": 2, "n_layers": 2, "max_seq_len": 40}),
        ("CodeGen", "CodeGenForCausalLM", _GPT2 | {"n_embd": 48, "n_head": 4, "rotary_dim": 6}),
        ("Nemotron", "NemotronForCausalLM", _LLAMA),
        ("GLM", "GlmForCausalLM", _LLAMA),
        ("DeepSeek-V2", "DeepseekV2ForCausalLM", _BERT | {
            "num_key_value_heads": 2, "moe_intermediate_size": 28, "n_routed_experts": 4,
            "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
            "kv_lora_rank": 12, "q_lora_rank": 16, "qk_rope_head_dim": 6, "v_head_dim": 10,
            "qk_nope_head_dim": 8, "n_shared_experts": 1}),
        ("DeepSeek-V3", "DeepseekV3ForCausalLM", _BERT | {
            "num_key_value_heads": 2, "moe_intermediate_size": 28, "n_routed_experts": 4,
            "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
            "kv_lora_rank": 12, "q_lora_rank": 16, "qk_rope_head_dim": 6, "v_head_dim": 10,
            "qk_nope_head_dim": 8, "n_shared_experts": 1}),
    ),
    *_rows(
        "Encoder-decoders",
        ("T5", "T5ForConditionalGeneration", _T5),
        ("FLAN-T5 (gated)", "T5ForConditionalGeneration", _T5 | {
            "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
        ("mT5", "MT5Model", _T5),
        ("BART", "BartForConditionalGeneration", _BART),
        ("mBART", "MBartForConditionalGeneration", _BART),
        ("Pegasus", "PegasusForConditionalGeneration", _BART),
        ("Marian", "MarianMTModel", _BART),
        ("M2M-100", "M2M100ForConditionalGeneration", _BART),
        ("Blenderbot", "BlenderbotForConditionalGeneration", _BART),
    ),
    *_rows(
        "Vision",
        ("ViT", "ViTForImageClassification", _IMAGE),
        ("DeiT", "DeiTModel", _IMAGE),
        ("BEiT", "BeitModel", _IMAGE),
        ("DINOv2", "Dinov2Model", _IMAGE),
        ("SigLIP", "SiglipModel", {
            "text_config": _BERT, "vision_config": _IMAGE}),
        ("CLIP", "CLIPModel", {
            "text_config": _TEXT_TOWER, "vision_config": _IMAGE, "projection_dim": 20}),
        ("Swin", "SwinForImageClassification", _SWIN),
        ("ConvNeXt", "ConvNextForImageClassification", _STAGES),
        ("ResNet", "ResNetForImageClassification", _STAGES),
        ("RegNet", "RegNetModel", _STAGES | {"groups_width": 4}),
        ("SegFormer", "SegformerForImageClassification", {
            "num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1],
            "hidden_sizes": [12, 20], "patch_sizes": [7, 3], "strides": [4, 2],
            "num_attention_heads": [1, 2], "mlp_ratios": [2, 2], "image_size": 32,
            "decoder_hidden_size": 12}),
    ),
    *_rows(
        "Audio",
        ("Whisper", "WhisperForConditionalGeneration", _BART | {
            "num_mel_bins": 10, "max_source_positions": 15, "max_target_positions": 20}),
        ("Wav2Vec2", "Wav2Vec2ForCTC", _SOUND),
        ("HuBERT", "HubertModel", _SOUND),
        ("WavLM", "WavLMModel", _SOUND | {"num_buckets": 8}),
        ("AST", "ASTForAudioClassification", _DEEP | {
            "intermediate_size": 60, "patch_size": 6, "max_length": 24, "num_mel_bins": 18,
            "frequency_stride": 6, "time_stride": 6}),
        ("Speech2Text", "Speech2TextForConditionalGeneration", _BART | {
            "input_feat_per_channel": 10, "conv_channels": 24, "max_source_positions": 40,
            "max_target_positions": 20, "num_conv_layers": 2}),
    ),
    *_rows(
        "State-space and recurrent",
        ("Mamba", "MambaForCausalLM", _MAMBA | {"time_step_rank": 5}),
        ("Mamba-2", "Mamba2ForCausalLM", _MAMBA | {
            "head_dim": 12, "num_heads": 6, "expand": 2, "n_groups": 1, "chunk_size": 8}),
        ("FalconMamba", "FalconMambaForCausalLM", _MAMBA | {"time_step_rank": 5}),
        ("RecurrentGemma", "RecurrentGemmaForCausalLM", _BERT | {
            "num_hidden_layers": 3, "num_key_value_heads": 1, "lru_width": 36,
            "attention_window_size": 8}),
        ("RWKV", "RwkvForCausalLM", _TOKENS | {
            "hidden_size": 36, "attention_hidden_size": 36, "num_hidden_layers": 2,
            "intermediate_size": 60, "context_length": 40}),
    ),
)  # fmt: skip
