# What both demos share: to be sourced. Every command is printed before it runs; no process is left behind.
server=

say() { printf '\n\033[1m# %s\033[0m\n' "$*"; }

show() {
  printf '\033[36m$'
  printf ' %s' "${@@Q}" | sed -E "s/'([A-Za-z0-9_.,:=\/+-]+)'/\1/g"
  printf '\033[0m\n'
}

run() { show "$@"; "$@"; }

stop() {
  [ -z "$server" ] || { kill -TERM "$server" 2>/dev/null && wait "$server" || true; server=; }
}
trap stop EXIT

serve() { # serve CHECKPOINT TP: starts a server in the background, leaves its HOST:PORT in $address
  local log; log=$(mktemp)
  show mtl-serve run "$1" --tp "$2" --port 0
  mtl-serve run "$1" --tp "$2" --port 0 >"$log" 2>&1 &
  server=$!
  address=
  for _ in $(seq 480); do
    address=$(grep -oE '127\.0\.0\.1:[0-9]+' "$log" | head -1) && break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.25
  done
  cat "$log"
  rm "$log"
  [ -n "$address" ] || { echo "the server did not get ready within 120 s" >&2; exit 1; }
}
