"""Greedy generation by transformers, in turns: a number of new tokens in, the seconds they took out."""

import argparse
import json
import sys
import time
import warnings

import torch
from transformers import AutoModelForCausalLM

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def main() -> None:
    """Loads the model and serves turns."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--dtype", choices=[*DTYPES], required=True)
    parser.add_argument("--prompts", type=json.loads, required=True, help="token ids, a list a sequence")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=DTYPES[options.dtype])
    model.eval()  # type: ignore[no-untyped-call]
    prompts = torch.tensor(options.prompts)
    mask = torch.ones_like(prompts)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        count = int(line)
        limits = {"min_new_tokens": count, "max_new_tokens": count, "do_sample": False, "pad_token_id": 0}
        began, worked = time.perf_counter(), time.process_time()
        with torch.inference_mode():
            found = model.generate(prompts, attention_mask=mask, **limits)
        seconds, cpu = time.perf_counter() - began, time.process_time() - worked
        tokens = found[:, prompts.shape[1] :].tolist()
        print(json.dumps({"seconds": seconds, "cpu": cpu, "tokens": tokens}), flush=True)


if __name__ == "__main__":
    main()
