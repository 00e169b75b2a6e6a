#!/usr/bin/env bash
# Runs NCCL's collectives between two ranks on one GPU through `ferroce run`, with no variable of
# NCCL set by the user, and checks the data and the bytes that crossed rxe0.
#
# Usage: docs/gpu/nccl.sh [FERROCE [BYTES...]]
#
# FERROCE is the program, target/release/ferroce by default; its libraries are in `lib` beside it.
# PYTHON names a Python with PyTorch, python3 by default. There must be no link named rxe0.
set -euo pipefail

here=$(dirname "$(realpath "$0")")
ferroce=$(realpath "${1:-target/release/ferroce}")
sizes=("${@:2}")
((${#sizes[@]})) || sizes=(4 1048576 67108864)
python=${PYTHON:-python3}
for variable in $(compgen -e); do
    case $variable in NCCL_*) unset "$variable" ;; esac
done

log=$(mktemp)
"$ferroce" link add rxe0 type rxe netdev lo
trap '"$ferroce" link delete rxe0; rm -f "$log"' EXIT

"$python" -c 'import torch; print("PyTorch", torch.__version__, "NCCL", torch.cuda.nccl.version())'
"$ferroce" run -- "$python" "$here/collectives.py" "${sizes[@]}" 2>&1 | tee "$log"

at_least=0
for size in "${sizes[@]}"; do
    at_least=$((at_least + 3 * size))
done
# The table of collectives.py has three operations, each with a line per size.
right=$(grep -c ' right$' "$log" || true)
sent=$("$ferroce" stat rxe0 | grep -ow 'sent_bytes [0-9]*' | cut -d' ' -f2)
echo "$right of $((3 * ${#sizes[@]})) lines right, rxe0 sent $sent bytes (at least $at_least expected)"
grep -q 'has set NCCL_GIN_TYPE=2' "$log" || { echo "error: NCCL did not use Ferroce's libibverbs"; exit 1; }
((right == 3 * ${#sizes[@]})) || { echo "error: data is missing or wrong"; exit 1; }
((sent >= at_least)) || { echo "error: the data took another way"; exit 1; }
echo "NCCL works without settings"
