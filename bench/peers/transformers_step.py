"""Training steps of transformers' GPT-2 in the plain loop that its users write, one process."""

import torch
import turns
import work
from transformers import GPT2Config, GPT2LMHeadModel


def main() -> None:
    """Builds the model and serves steps."""
    options = work.parse()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    shape = GPT2Config(
        vocab_size=work.VOCAB,
        n_positions=work.SEQ,
        n_embd=work.HIDDEN,
        n_layer=work.LAYERS,
        n_head=work.HEADS,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = GPT2LMHeadModel(shape)
    model.set_attn_implementation("sdpa")
    if options.dtype == "bf16":
        model = model.bfloat16()
    decay = work.WEIGHT_DECAY
    optimizer = torch.optim.AdamW(model.parameters(), lr=work.LR, weight_decay=decay, fused=True)
    count = work.MICRO_BATCH * work.MICRO_BATCHES
    tokens = torch.randint(0, work.VOCAB, (count, work.SEQ), generator=torch.Generator().manual_seed(3))
    mixed = options.dtype == "autocast"

    def step() -> float:
        total = 0.0
        for part in torch.split(tokens, work.MICRO_BATCH):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
                loss = model(input_ids=part, labels=part, use_cache=False).loss * len(part) / count
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), work.CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    turns.serve(step)


if __name__ == "__main__":
    main()
