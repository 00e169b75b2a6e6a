//! Runtime directories of ferroced: other users cannot occupy them, and they are found in
//! user namespaces.

mod common;

use ferroce_testnet::{isolated_as_root, sandbox};

use common::FERROCE;

/// Runs a script in a network namespace of its own. `$FERROCE` is the command.
fn script(name: &str, text: &'static str) {
    isolated_as_root(name, || {
        sandbox::succeeds(text, &[("FERROCE", FERROCE)]);
    });
}

/// The first commands of a new user.
const FIRST_STEPS: &str = r#"
cat > /tmp/first-steps <<'END'
set -eu
"$FERROCE" link
"$FERROCE" link add rxe0 type rxe netdev lo
"$FERROCE" link | grep -q '^link rxe0/1 state ACTIVE'
"$FERROCE" run -- "$FERROCE" link | grep -q '^link rxe0/1'
"$FERROCE" link delete rxe0
"$FERROCE" run -- "$FERROCE" link | grep -q '^link rxe0/1'
END
"#;

#[test]
fn names_taken_by_another_user_do_not_block_root() {
    isolated_as_root("names_taken_by_another_user_do_not_block_root", || {
        let text = r#"
            as 60002 mkdir -m 700 /tmp/ferroce-0 /tmp/ferroce.0
            as 60002 ln -s /etc /tmp/ferroce.1
            sh /tmp/first-steps
        "#;
        let text = format!("{FIRST_STEPS}{text}");
        sandbox::succeeds(&text, &[("FERROCE", FERROCE)]);
    });
}

#[test]
fn names_taken_by_another_user_do_not_block_a_user() {
    isolated_as_root("names_taken_by_another_user_do_not_block_a_user", || {
        let text = r#"
            as 60002 mkdir -m 777 /tmp/ferroce-60001 /tmp/ferroce.0
            as 60002 ln -s /etc /tmp/ferroce.1
            as 60001 sh /tmp/first-steps
        "#;
        let text = format!("{FIRST_STEPS}{text}");
        sandbox::succeeds(&text, &[("FERROCE", FERROCE)]);
    });
}

#[test]
fn session_directory_is_found_without_xdg_runtime_dir() {
    script(
        "session_directory_is_found_without_xdg_runtime_dir",
        r#"
            mkdir /run/user
            install -d -m 700 -o 60001 -g 60001 /run/user/60001
            as 60001 env XDG_RUNTIME_DIR=/run/user/60001 "$FERROCE" link add a type rxe netdev lo
            test -d /run/user/60001/ferroce
            as 60001 "$FERROCE" link | grep -q '^link a/1'
            # In the user namespace the user is 0, and still owns the directory.
            as 60001 unshare --map-root-user "$FERROCE" link | grep -q '^link a/1'
        "#,
    );
}

#[test]
fn xdg_runtime_dir_of_another_user_is_skipped() {
    script(
        "xdg_runtime_dir_of_another_user_is_skipped",
        r#"
            mkdir /run/user
            install -d -m 700 -o 60001 -g 60001 /run/user/60001
            export XDG_RUNTIME_DIR=/run/user/60001
            as 60001 mkdir -m 700 "$XDG_RUNTIME_DIR/ferroce"
            as 60002 "$FERROCE" run -- "$FERROCE" link | grep -q '^link rxe0/1'
        "#,
    );
}

#[test]
fn user_namespaces_work_after_root_has_used_ferroce() {
    script(
        "user_namespaces_work_after_root_has_used_ferroce",
        r#"
            "$FERROCE" link add of-root type rxe netdev lo
            own='unshare --map-root-user --net'
            as 60001 $own "$FERROCE" run -- "$FERROCE" link | grep -q '^link rxe0/1'
            $own "$FERROCE" run -- "$FERROCE" link | grep -q '^link rxe0/1'
            as 60001 unshare --user --map-current-user --net "$FERROCE" link
            as 60001 unshare --user --net "$FERROCE" link
        "#,
    );
}

#[test]
fn ferroced_of_root_is_found_in_a_user_namespace() {
    script(
        "ferroced_of_root_is_found_in_a_user_namespace",
        r#"
            printf 'ferroce:x:60001:\n' > /tmp/group
            mount --bind /tmp/group /etc/group
            "$FERROCE" link add of-root type rxe netdev lo
            as 60001 "$FERROCE" link | grep -q '^link of-root/1'
            as 60001 unshare --map-root-user "$FERROCE" link | grep -q '^link of-root/1'
        "#,
    );
}

#[test]
fn socket_of_a_killed_ferroced_does_not_block_users() {
    script(
        "socket_of_a_killed_ferroced_does_not_block_users",
        r#"
            "$FERROCE" link add of-root type rxe netdev lo
            if as 60001 "$FERROCE" run -- true 2> /tmp/refused; then exit 1; fi
            grep -q 'control.sock: permission denied' /tmp/refused
            kill -9 "$(cat /run/ferroce/*/ferroced.pid)"
            test -S /run/ferroce/*/control.sock
            while grep -q control.sock /proc/net/unix; do :; done
            as 60001 "$FERROCE" run -- "$FERROCE" link | grep -q '^link rxe0/1'
        "#,
    );
}

/// With a second ferroced, programs would get no queue pair, and only ENOMEM.
#[test]
fn second_ferroced_elsewhere_is_refused_with_the_place_of_the_first() {
    script(
        "second_ferroced_elsewhere_is_refused_with_the_place_of_the_first",
        r#"
            install -d -m 700 -o 60001 -g 60001 /run/one /run/two
            as 60001 env XDG_RUNTIME_DIR=/run/one "$FERROCE" link add a type rxe netdev lo
            if as 60001 env XDG_RUNTIME_DIR=/run/two "$FERROCE" run -- true 2> /tmp/refused; then
                exit 1
            fi
            base=$(sed -n 's/.*set FERROCE_RUNTIME_DIR=\([^;]*\);.*/\1/p' /tmp/refused)
            test "$base" = /run/one/ferroce
            grep -q "kill $(cat /run/one/ferroce/*/ferroced.pid)" /tmp/refused
            as 60001 env FERROCE_RUNTIME_DIR="$base" "$FERROCE" link | grep -q '^link a/1'
        "#,
    );
}

#[test]
fn group_ferroce_does_not_block_users_outside_it() {
    script(
        "group_ferroce_does_not_block_users_outside_it",
        r#"
            printf 'ferroce:x:990:\n' > /tmp/group
            mount --bind /tmp/group /etc/group
            as 60001 "$FERROCE" demo --brief
            as 60001 unshare --map-root-user --net "$FERROCE" run -- true
            # Root of a container without CAP_CHOWN.
            setpriv --bounding-set=-chown --inh-caps=-chown \
                "$FERROCE" run -- "$FERROCE" link | grep -q '^link rxe0/1'
        "#,
    );
}

/// Rsockets of servers that fork serialise by a lock that other users cannot hold.
#[test]
fn lock_held_by_another_user_does_not_stop_a_server() {
    let name = "lock_held_by_another_user_does_not_stop_a_server";
    if !std::path::Path::new("/usr/bin/rstream").exists() {
        let line = "*** SKIPPED: rstream is not installed ***";
        assert!(std::env::var_os("CI").is_none(), "{line}");
        return eprintln!("{line}");
    }
    if !ferroce_testnet::namespace::is_root() {
        return eprintln!("*** SKIPPED: {name}: only root can become other users ***");
    }
    common::with_libraries(name, || {
        let text = r#"
            mount -t tmpfs -o mode=1777 tmpfs /dev/shm
            lock=/dev/shm/ferroce-rsocket-fork
            as 60001 touch $lock
            as 60002 flock $lock sleep 60 &
            while as 60002 flock --nonblock $lock true; do :; done
            as 60001 "$FERROCE" link add rxe0 type rxe netdev lo
            stream="env LD_PRELOAD=librspreload.so RDMAV_FORK_SAFE=1 \
                rstream -p 19418 -T f -T b -S 4096 -I 10 -C 10"
            as 60001 "$FERROCE" run -- $stream &
            until grep -q ':4BDA .* 0A ' /proc/net/tcp; do :; done
            as 60001 timeout 15 "$FERROCE" run -- $stream -s 127.0.0.1
        "#;
        sandbox::succeeds(text, &[("FERROCE", FERROCE)]);
    });
}

/// On a link of type siw the server's own TCP listener has the port that RDMA needs. The client
/// must not wait for ever.
#[test]
fn client_of_a_server_that_forks_finds_the_connection_closed_on_siw() {
    let name = "client_of_a_server_that_forks_finds_the_connection_closed_on_siw";
    if !std::path::Path::new("/usr/bin/rstream").exists() {
        let line = "*** SKIPPED: rstream is not installed ***";
        assert!(std::env::var_os("CI").is_none(), "{line}");
        return eprintln!("{line}");
    }
    common::with_libraries(name, || {
        let text = r#"
            "$FERROCE" link add siw0 type siw netdev lo
            stream="env LD_PRELOAD=librspreload.so RDMAV_FORK_SAFE=1 \
                rstream -p 19418 -T f -T b -S 4096 -I 10 -C 10"
            "$FERROCE" run -- $stream &
            until grep -q ':4BDA .* 0A ' /proc/net/tcp; do :; done
            code=0
            timeout 60 "$FERROCE" run -- $stream -s 127.0.0.1 || code=$?
            test $code -ne 0 -a $code -ne 124
        "#;
        sandbox::succeeds(text, &[("FERROCE", FERROCE)]);
    });
}

/// ferroced checks twice, ten seconds apart, so this test takes about twenty seconds.
#[test]
fn ferroced_ends_in_an_abandoned_network_namespace() {
    script(
        "ferroced_ends_in_an_abandoned_network_namespace",
        r#"
            as 60001 unshare --map-root-user --net sh -ec '
                ip link set lo up
                "$FERROCE" link add rxe0 type rxe netdev lo
            '
            file=$(ls /tmp/ferroce.*/*/ferroced.pid)
            timeout 90 sh -c "while [ -e $file ]; do sleep 0.1; done"
        "#,
    );
}
