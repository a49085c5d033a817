"""Names that other tools use for tlaunch's settings and options, from MindSpore, Hugging Face, Lightning, fairseq and Megatron.

Error messages and `tlaunch explain SETTING` read these tables, and a test compares docs/tutorial.md and
docs/reference/mindspore-names.md with them. A setting's own name without its section is not listed here.
"""

from __future__ import annotations

from collections.abc import Collection

VALUE = "VALUE"  # for the user to fill in
# Setting, or option of `tlaunch run`: names in other tools. After a name with `*`, the value has another unit or meaning.
NAMES = {
    "model.vocabulary_size": "vocab_size padded_vocab_size bpe bpe_size vocabulary vocab subwords",
    "model.d_model": "hidden_size embed_dim n_embd encoder_embed_dim decoder_embed_dim model_dim",
    "model.heads": "num_heads num_attention_heads n_head n_heads nhead encoder_attention_heads decoder_attention_heads",
    "model.feed_forward_dim": "ffn_hidden_size d_ff ffn_dim intermediate_size dim_feedforward encoder_ffn_dim "
    "decoder_ffn_dim encoder_ffn_embed_dim decoder_ffn_embed_dim",
    "model.activation": "hidden_act activation_fn activation_function",
    "model.encoder_layers": "encoder_layer num_encoder_layers encoder_num_layers layers num_layers n_layer "
    "num_hidden_layers",
    "model.decoder_layers": "decoder_layer num_decoder_layers decoder_num_layers layers num_layers n_layer "
    "num_hidden_layers",
    "model.dropout": "hidden_dropout hidden_dropout_rate hidden_dropout_prob",
    "model.attention_dropout": "attention_dropout_rate attention_probs_dropout_prob",
    "model.activation_dropout": "relu_dropout",
    "data.source_language": "source_lang src_lang",
    "data.target_language": "target_lang tgt_lang",
    "data.tokenizer": "bpe sentencepiece spm spm_model tokenizer_name tokenizer_path",
    "data.source_length": "src_len src_seq_length encoder_seq_length max_source_length max_source_positions seq_length "
    "seq_len max_length max_seq_len max_position_embeddings",
    "data.target_length": "tgt_len tgt_seq_length decoder_seq_length max_target_length max_target_positions seq_length "
    "seq_len max_length max_seq_len max_position_embeddings",
    "train.epochs": "num_train_epochs num_epochs max_epochs max_epoch epoch epoch_size",
    "train.steps": "max_steps num_steps train_steps max_update max_updates train_iters max_iters iterations",
    "train.batch_size": "global_batch_size train_batch_size bsz* max_sentences* per_device_train_batch_size* "
    "micro_batch_size*",
    "train.batch_tokens": "max_tokens*",
    "train.optimizer": "optim",
    "train.learning_rate": "lr max_lr base_lr",
    "train.momentum": "sgd_momentum",
    "train.warmup_steps": "warmup warmup_updates num_warmup_steps lr_warmup_iters lr_warmup_steps",
    "train.schedule": "lr_scheduler lr_scheduler_type lr_schedule lr_decay_style scheduler",
    "train.minimum_rate": "min_lr stop_min_lr eta_min",
    "train.beta1": "adam_beta1 adam_betas* betas*",
    "train.beta2": "adam_beta2 adam_betas* betas*",
    "train.epsilon": "eps adam_eps adam_epsilon",
    "train.weight_decay": "wd",
    "train.clip_norm": "clip_grad grad_clip clip_grad_norm max_grad_norm gradient_clip_val",
    "train.label_smoothing": "label_smoothing_factor smoothing",
    "train.seed": "random_seed manual_seed seed_everything",
    "train.precision": "dtype torch_dtype params_dtype mixed_precision",
    "train.device": "device_target accelerator",
    "train.validate_every": "eval_steps eval_interval eval_every validate_interval_updates val_check_interval*",
    "train.early_stopping": "patience early_stopping_patience",
    "train.best_metric": "best_checkpoint_metric metric_for_best_model monitor",
    "train.bleu_sentences": "eval_bleu*",
    "parallel.mode": "parallel_mode",
    "parallel.optimizer_shard": "enable_parallel_optimizer use_distributed_optimizer",
    "parallel.gradient_groups": "set_comm_fusion",
    "parallel.recompute": "gradient_checkpointing activation_checkpointing recompute_activations "
    "checkpoint_activations",
    "checkpoint.enabled": "enable_checkpointing",
    "checkpoint.every_steps": "save_every save_steps save_interval save_interval_updates save_checkpoint_steps "
    "every_n_train_steps",
    "checkpoint.every_minutes": "save_checkpoint_seconds*",
    "checkpoint.keep": "save_total_limit keep_checkpoint_max keep_interval_updates keep_last_epochs*",
    "checkpoint.keep_best": "load_best_model_at_end* save_best",
    "--dp": "dp data_parallel data_parallel_size dp_size",
    "--mp": "mp tp model_parallel model_parallel_size tensor_parallel tensor_parallel_size "
    "tensor_model_parallel_size mp_size tp_size",
    "--pp": "pp pipeline_stage pipeline_stages stage_num pipeline_parallel_size pipeline_model_parallel_size pp_size",
    "--micro-batches": "micro_batch_num num_microbatches num_micro_batches gradient_accumulation_steps "
    "accumulate_grad_batches update_freq grad_accum",
    "--data": "data_path data_dir data_url dataset dataset_path file_path train_file train_data",
    "--source": "src src_file source_file train_src train_source",
    "--target": "tgt tgt_file trg target_file train_tgt train_target",
    "--resume": "resume_from_checkpoint resume_from ckpt_path restore_file load load_checkpoint continue",
    "--init-from": "finetune finetune_from finetune_from_model from_pretrained pretrained pretrained_model "
    "model_name_or_path init_checkpoint load_pretrained",
    "--runs-dir": "output_dir save_dir default_root_dir",
    "--config": "config_file config_path config_name cfg",
    "--name": "run_name exp_name experiment_name",
    "--timeout": "time_limit max_time* exit_duration_in_mins*",
}  # fmt: skip
# Option of another command: names in other tools.
OPTIONS = {
    "--all": "a",  # docker's, of ps
    "--kill": "9 f force",
    "--timestamps": "t",
    "--rank": "r ranks",
    "--version": "v",
    "--beam": "num_beams beam_size beams beam",
    "--alpha": "lenpen len_penalty length_penalty",
    "--batch-tokens": "max_tokens",
    "--source": "input i src_path",
    "--reference": "ref refs references tgt trg target tgt_path gold",
    "--output": "out hypotheses",
    "--device-ids": "device_num",
    "--format": "to",
}
# Value of an option with choices: tlaunch's choice.
CHOICES = {
    **dict.fromkeys(("hf", "huggingface", "safetensors", "marian"), "transformers"),
    "torch": "dcp",
    "ckpt": "mindspore",
}
# Switches of other tools: the setting with its value.
SWITCHES = {
    **dict.fromkeys(("bf16", "fp16", "amp"), ("train.precision", "bfloat16")),
    "fp32": ("train.precision", "float32"),
    **dict.fromkeys(("cpu", "use_cpu", "no_cuda"), ("train.device", "cpu")),
    **dict.fromkeys(("norm_first", "normalize_before", "encoder_normalize_before"), ("model.norm", "pre")),
    "share_all_embeddings": ("model.share", "all"),
    **dict.fromkeys(("share_decoder_input_output_embed", "tie_word_embeddings"), ("model.share", "decoder")),
    **dict.fromkeys(("encoder_learned_pos", "decoder_learned_pos"), ("model.positions", "learned")),
}
# Values in other tools: the value of a setting with choices.
VALUES = {
    **dict.fromkeys(("bf16", "bf16-mixed", "bf16-true", "fp16", "float16", "half", "16", "16-mixed"), "bfloat16"),
    **dict.fromkeys(("fp32", "32", "32-true", "single"), "float32"),
    **dict.fromkeys(("fp64", "64", "64-true", "double"), "float64"),
    **dict.fromkeys(("noam", "inverse-sqrt"), "inverse_sqrt"),
    **dict.fromkeys(("cosine_with_restarts", "cosine_with_min_lr", "cosine_annealing"), "cosine"),
    "constant_with_warmup": "constant",
    **dict.fromkeys(("adam", "adamw_torch", "adamw_torch_fused"), "adamw"),
    "adamweightdecay": "adam_weight_decay",
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu"),
    **dict.fromkeys(("gpu", "cuda", "npu", "ascend"), "auto"),
}


def names_of(setting: str, *, same_meaning: bool = False) -> tuple[str, ...]:
    """Return the names of a setting in other tools. `same_meaning`: only those whose values have the same meaning."""
    names = NAMES.get(setting, "").split()
    return tuple(name.rstrip("*") for name in names if not (same_meaning and name.endswith("*")))


def options_called(name: str, own: Collection[str]) -> list[str]:
    """Return the options in `own`, those of a command, that another tool calls `name`.

    >>> options_called("--num_beams", ("--beam", "--alpha")), options_called("--tgt", ("--source", "--reference"))
    (['--beam'], ['--reference'])
    """
    key = _key(name)
    return [
        option
        for table in (NAMES, OPTIONS)
        for option, names in table.items()
        if option in own and key in names.split()
    ]


def _key(name: str) -> str:
    return name.rpartition(".")[2].lstrip("-").replace("-", "_").casefold()


def equivalents(name: str, known: Collection[str]) -> list[tuple[str, str | None]]:
    """Return the settings in `known` and the options that another tool, or the user without the section, calls `name`.

    If several sections have the name, the setting of `train` is meant.
    Each comes with the value that a switch stands for, VALUE if the other tool's value has another meaning, or None.

    >>> equivalents("--tp", ()), equivalents("train.bf16", ["train.precision"]), equivalents("--Heads", ["model.heads"])
    ([('--mp', None)], [('train.precision', 'bfloat16')], [('model.heads', None)])
    """
    key = _key(name)
    own = [setting for setting in known if setting.rpartition(".")[2] == key]
    if own:
        return [(min(own, key=lambda setting: not setting.startswith("train.")), None)]
    if key in SWITCHES and SWITCHES[key][0] in known:
        return [SWITCHES[key]]
    return [
        (target, VALUE if f"{key}*" in names.split() else None)
        for target, names in NAMES.items()
        if key in names_of(target) and (target in known or target.startswith("--"))
    ]
