# Functions of the package's tests. Use: `. /common.sh`

say() { printf '   %s\n' "$*"; }

# Runs a command and shows its output only if it fails.
quietly() {
    if ! "$@" >/tmp/log 2>&1; then
        cat /tmp/log
        return 1
    fi
}

# Fails if a command succeeds. Unlike `!`, this works under `set -e`.
not() {
    if "$@"; then
        echo "this command succeeded but should fail: $*" >&2
        return 1
    fi
}

# Waits up to 30 seconds until a command succeeds: wait_for "DESCRIPTION" COMMAND ...
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

# Succeeds if a socket listens on a TCP port, given in hexadecimal digits.
listens() { cat /proc/net/tcp /proc/net/tcp6 | grep -q ":$1 [0-9A-F:]* 0A "; }

# Ferroce's `rdma`, which `ferroce run` puts on PATH.
rdma_of_ferroce() { /usr/lib/ferroce/bin/rdma "$@"; }
rping_listens() { rdma_of_ferroce resource show cm_id state LISTEN | grep -q ':7174 '; }

# Succeeds if no ferroced runs in this system.
no_ferroced() { ! grep -qx ferroced /proc/[0-9]*/comm 2>/dev/null; }
