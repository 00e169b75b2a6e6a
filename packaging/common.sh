# What the tests of the package share. `. /common.sh`

say() { printf '   %s\n' "$*"; }

# Shows what a command says only if it fails.
quietly() {
    if ! "$@" >/tmp/log 2>&1; then
        cat /tmp/log
        return 1
    fi
}

# Fails if a command succeeds: unlike `!`, also under `set -e`.
not() {
    if "$@"; then
        echo "this should have failed: $*" >&2
        return 1
    fi
}

# Waits until a command succeeds, and fails if it does not: wait_for "what" command ...
wait_for() {
    what=$1
    shift
    end=$(($(date +%s) + 30))
    until "$@"; do
        if [ "$(date +%s)" -ge "$end" ]; then
            echo "$what: not within 30 seconds" >&2
            return 1
        fi
        sleep 0.05
    done
}

# Whether somebody listens on a TCP port, given in hexadecimal digits.
listens() { cat /proc/net/tcp /proc/net/tcp6 | grep -q ":$1 [0-9A-F:]* 0A "; }

# `rdma`, as `ferroce run` has it.
rdma_of_ferroce() { /usr/lib/ferroce/bin/rdma "$@"; }
rping_listens() { rdma_of_ferroce resource show cm_id state LISTEN | grep -q ':7174 '; }

# Whether no ferroced runs in this system.
no_ferroced() { ! grep -qx ferroced /proc/[0-9]*/comm 2>/dev/null; }
