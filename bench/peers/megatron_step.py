"""Training steps of megatron-core's GPT on CPU ranks with gloo.

megatron-core names CUDA in a few places where nothing needs it. `on_cpu` gives those calls their CPU
meaning and changes no arithmetic; dropout is 0, because CPU and CUDA random numbers become one. Its layers
are the "local" ones: the others need a GPU.
"""

import contextlib
import re
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import turns
import work


class _Stream:
    """A CUDA stream that has nothing to order."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def wait_stream(self, *_: object) -> None: ...

    def wait_event(self, *_: object) -> None: ...

    def synchronize(self) -> None: ...


def _factory(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(*args: Any, **kwargs: Any) -> Any:
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return make(*args, **kwargs)

    return made


def on_cpu() -> None:
    """Maps what megatron-core asks of CUDA to the CPU."""
    plain_type: Any = torch.Tensor.type

    def cuda_type(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        name = plain_type(self, *args, **kwargs)
        spoof = isinstance(name, str) and "cuda" not in name
        return name.replace("torch.", "torch.cuda.") if spoof else name

    def replace(owner: Any, **values: Any) -> None:
        for name, value in values.items():
            setattr(owner, name, value)

    for name in (
        "zeros",
        "tensor",
        "empty",
        "ones",
        "full",
        "arange",
        "zeros_like",
        "empty_like",
        "ones_like",
    ):
        setattr(torch, name, _factory(getattr(torch, name)))
    replace(torch.Tensor, cuda=lambda self, *_, **__: self, type=cuda_type)
    replace(torch.nn.Parameter, type=cuda_type)
    replace(
        torch.cuda,
        current_device=lambda: torch.device("cpu"),
        get_rng_state=lambda *_, **__: torch.get_rng_state(),
        set_rng_state=lambda state, *_, **__: torch.set_rng_state(state),
        manual_seed=torch.manual_seed,
        synchronize=lambda *_, **__: None,
        empty_cache=lambda: None,
        Stream=_Stream,
        current_stream=lambda *_, **__: _Stream(),
        stream=lambda _: contextlib.nullcontext(),
    )
    for check in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"):
        setattr(torch.optim.Optimizer, check, lambda self: None)
    from megatron.core.tensor_parallel import random

    replace(
        random,
        _get_cuda_rng_state=lambda *_, **__: torch.get_rng_state(),
        _set_cuda_rng_state=lambda state, *_, **__: torch.set_rng_state(state),
    )


def build(tp: int, pp: int, dtype: torch.dtype, zero: int) -> tuple[Any, Any, Any]:
    """Model (wrapped for data parallel), optimizer and configuration."""
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer.transformer_config import TransformerConfig

    parallel_state.initialize_model_parallel(tp, pp)
    tensor_parallel.model_parallel_cuda_manual_seed(1234)
    torch.manual_seed(7)
    bf16 = dtype == torch.bfloat16
    config = TransformerConfig(
        num_layers=work.LAYERS,
        hidden_size=work.HIDDEN,
        num_attention_heads=work.HEADS,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        pipeline_dtype=dtype,
        bf16=bf16,
        params_dtype=dtype,
    )
    model = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(),
        vocab_size=work.VOCAB,
        max_sequence_length=work.SEQ,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=True,
        position_embedding_type="rope",
    )
    ddp = DistributedDataParallelConfig(
        use_distributed_optimizer=bool(zero), overlap_grad_reduce=False, grad_reduce_in_fp32=True
    )
    wrapped = DistributedDataParallel(config, ddp, model.bfloat16() if bf16 else model)
    settings = OptimizerConfig(
        optimizer="adam",
        lr=work.LR,
        min_lr=work.LR,
        weight_decay=work.WEIGHT_DECAY,
        clip_grad=work.CLIP,
        bf16=bf16,
        params_dtype=dtype,
        use_distributed_optimizer=bool(zero),
    )
    optimizer = get_megatron_optimizer(settings, [wrapped])
    config.finalize_model_grads_func = finalize_model_grads
    return wrapped, optimizer, config


def main() -> None:
    """Builds this rank's part and serves steps."""
    options = work.parse()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    on_cpu()
    from megatron.core.pipeline_parallel import get_forward_backward_func

    sizes = {name: int(size) for name, size in re.findall(r"([a-z]+)(\d+)", options.layout)}
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[options.dtype]
    model, optimizer, _ = build(sizes.get("tp", 1), sizes.get("pp", 1), dtype, options.zero)
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, work.VOCAB, (work.MICRO_BATCH, work.SEQ), generator=generator)
    positions = torch.arange(work.SEQ)[None].expand(work.MICRO_BATCH, -1)
    hidden = torch.tril(torch.ones(1, 1, work.SEQ, work.SEQ)) < 0.5
    schedule = get_forward_backward_func()

    def forward(_: object, chunk: Any) -> tuple[Any, Callable[[Any], tuple[Any, dict[str, float]]]]:
        out = chunk(tokens, positions, hidden, labels=tokens)
        return out, lambda loss: (loss.mean(), {"loss": float(loss.detach().mean())})

    def step() -> float:
        model.zero_grad_buffer()
        optimizer.zero_grad()
        seen = schedule(
            forward_step_func=forward,
            data_iterator=None,
            model=[model],
            num_microbatches=work.MICRO_BATCHES,
            seq_length=work.SEQ,
            micro_batch_size=work.MICRO_BATCH,
            forward_only=False,
        )
        optimizer.step()
        return float(seen[0]["loss"]) if seen else float("nan")

    turns.serve(step, before=dist.barrier)


if __name__ == "__main__":
    main()
