#!/usr/bin/env bash
# Moves GPU memory between two processes with NIXL (its UCX backend) and with Mooncake's transfer engine, through
# `ferroce run`, and checks the data and the bytes that crossed rxe0: first over shared memory, then over UDP.
#
# Usage: docs/gpu/transfer.sh [FERROCE [BYTES...]]
#
# FERROCE is the program, target/release/ferroce by default; its libraries are in `lib` beside it. PYTHON names a Python
# with NIXL (nixl-cu13), Mooncake (mooncake-transfer-engine-cuda13) and PyTorch, python3 by default. LIBRARIES chooses
# some of "nixl mooncake". MEMORY=host moves host memory, which needs no PyTorch. There must be no link named rxe0.
set -euo pipefail

here=$(dirname "$(realpath "$0")")
ferroce=$(realpath "${1:-target/release/ferroce}")
sizes=("${@:2}")
((${#sizes[@]})) || sizes=(4096 65536 1048576 16777216 67108864)
python=${PYTHON:-python3}
memory=${MEMORY:-gpu}
# Each size is written five times and read five times; READ responses are packets that the owner sends.
at_least=0
for size in "${sizes[@]}"; do
    at_least=$((at_least + 10 * size))
done

# UCX must not choose shared memory or CUDA IPC between the processes. GID 1 of rxe0 is 127.0.0.1.
export UCX_TLS=rc_v,ud_v,cuda_copy UCX_NET_DEVICES=rxe0:1 UCX_LOG_LEVEL=${UCX_LOG_LEVEL:-error} MC_GID_INDEX=1

log=$(mktemp)
failed=0
"$ferroce" link add rxe0 type rxe netdev lo
trap '"$ferroce" link delete rxe0; rm -f "$log"' EXIT
counter() { "$ferroce" stat rxe0 | grep -ow "$1 [0-9]*" | cut -d' ' -f2; }

for library in ${LIBRARIES:-nixl mooncake}; do
    for local in on off; do
        "$ferroce" link set rxe0 local $local
        sent=$(counter sent_bytes) shared=$(counter local_sent_bytes) status=0
        echo "== $library, $memory memory, local $local"
        "$ferroce" run -- "$python" "$here/transfer.py" "$library" "$memory" "${sizes[@]}" 2>&1 | tee "$log" || status=$?
        sent=$(($(counter sent_bytes) - sent)) shared=$(($(counter local_sent_bytes) - shared))
        right=$(grep -c ' right$' "$log" || true)
        echo "$right of $((2 * ${#sizes[@]})) lines right, rxe0 sent $sent bytes, $shared of them through shared memory" \
            "(at least $at_least expected)"
        if ((status != 0 || right != 2 * ${#sizes[@]})); then
            echo "error: data is missing or wrong"
            failed=1
        elif ((sent < at_least)); then
            echo "error: the data took another way"
            failed=1
        elif [[ $local = on ]] && ((shared < at_least)) || [[ $local = off ]] && ((shared > 0)); then
            echo "error: the data took the wrong wire"
            failed=1
        fi
    done
done
((failed == 0)) && echo "transfers of $memory memory work"
exit $failed
