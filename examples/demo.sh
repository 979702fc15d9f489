#!/usr/bin/env bash
# From a corpus to generated text, on two CPU cores, in under ten minutes. Every command is printed before it runs.
#
# The corpus is the Python standard library's own source, which every machine with Python has.
set -euo pipefail

out=${1:-demo}
corpus=$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
steps=${STEPS:-200}
began=$SECONDS
source "$(dirname "$0")/steps.sh"

rm -rf "$out" && mkdir -p "$out"

say "A byte-level BPE vocabulary from the corpus itself"
run mtl-prep train-tokenizer "$corpus" --vocab-size 4096 --sample 16MB --out "$out/tokenizer"

say "The corpus as token bins: memory-mapped Arrow files"
run mtl-prep tokenize "$corpus" --tokenizer "$out/tokenizer" --out "$out/bins" --workers 2
run mtl-prep inspect "$out/bins"

say "A small GPT on four ranks: two tensor-parallel halves of two pipeline stages"
train=(mtl-train --data "$out/bins" --model small --out "$out/run" --seq 256 --micro-batch 4 --global-batch 16 --lr 2e-3
       --set schedule.warmup_steps=20 --set schedule.steps="$steps" --set checkpoint.every=50)
run "${train[@]}" --tp 2 --pp 2 --steps $((steps * 3 / 4))

say "Stopped. The same run goes on as two data-parallel ranks: a checkpoint has no layout"
run "${train[@]}" --dp 2 --steps "$steps"

say "The newest checkpoint, verified, then cut for two serving ranks"
run mtl-ckpt verify "$out/run"
run mtl-ckpt reshard "$out/run" --to tp2 --out "$out/served"
run mtl-ckpt inspect "$out/served"

say "Served by two tensor-parallel ranks"
serve "$out/served" 2

say "Three completions"
for prompt in 'def __init__(self' 'import os' 'class TestCase(unittest.'; do
  run mtl-serve generate "$prompt" --server "$address" --max-new-tokens 48 --temperature 0.7 --seed 1
done

stop
say "Done in $(((SECONDS - began) / 60)) min $(((SECONDS - began) % 60)) s. Everything lies in $out/."
