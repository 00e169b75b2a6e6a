//! `ferroced --metrics`: a reader of metrics over HTTP, and readers that misbehave.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use ferroce_testnet::{deadline, isolated};

use common::{Ferroced, add};

const ADDRESS: &str = "127.0.0.1:9947";

fn reader() -> TcpStream {
    #[allow(clippy::disallowed_methods, reason = "an ordinary reader of metrics")]
    TcpStream::connect(ADDRESS).expect("ferroced listens")
}

/// Sends a request. Returns headers and body of the response.
fn get(path: &str) -> (String, String) {
    let mut stream = reader();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {ADDRESS}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    read(stream)
}

fn read(mut stream: TcpStream) -> (String, String) {
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("a response");
    let (headers, body) = text.split_once("\r\n\r\n").expect("headers");
    (headers.to_owned(), body.to_owned())
}

#[test]
fn metrics_are_served_by_http() {
    isolated("metrics_are_served_by_http", || {
        let _ferroced = Ferroced::start_with(&["--metrics", ADDRESS]);
        add("rxe0", "lo").expect("added");
        let (headers, body) = get("/metrics");
        assert!(headers.starts_with("HTTP/1.1 200 OK\r\n"), "{headers}");
        let kind = "\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8";
        assert!(headers.contains(kind), "{headers}");
        let length = format!("\r\nContent-Length: {}\r\n", body.len());
        assert!(headers.contains(&length), "{headers}");
        let link = "ferroce_link_info{link=\"rxe0\",netdev=\"lo\",type=\"rxe\"} 1\n";
        assert!(body.contains(link), "{body}");
        assert!(body.contains("\nferroce_link_sent_pkts_total{link=\"rxe0\"} "));
        assert!(body.ends_with("\n# EOF\n"), "{body}");
        let (_, body) = get("/metrics/programs");
        assert!(body.ends_with("# EOF\n"), "{body}");
        let (headers, body) = get("/");
        assert!(headers.starts_with("HTTP/1.1 404 "), "{headers}");
        assert!(body.contains("/metrics/programs"), "{body}");
    });
}

#[test]
fn slow_reader_delays_no_other() {
    isolated("slow_reader_delays_no_other", || {
        let _ferroced = Ferroced::start_with(&["--metrics", ADDRESS]);
        let mut slow = reader();
        slow.write_all(b"GET /metr").expect("sent");
        let (headers, _) = get("/metrics");
        assert!(headers.starts_with("HTTP/1.1 200 "), "{headers}");
        slow.write_all(b"ics HTTP/1.1\r\n\r\n").expect("sent");
        let (headers, _) = read(slow);
        assert!(headers.starts_with("HTTP/1.1 200 "), "{headers}");
    });
}

#[test]
fn oldest_of_too_many_readers_is_closed() {
    isolated("oldest_of_too_many_readers_is_closed", || {
        let ferroced = Ferroced::start_with(&["--metrics", ADDRESS]);
        let before = ferroced.descriptors();
        let mut idle: Vec<TcpStream> = (0..33).map(|_| reader()).collect();
        let mut byte = [0];
        assert_eq!(idle[0].read(&mut byte).expect("closed"), 0);
        let (headers, _) = get("/metrics");
        assert!(headers.starts_with("HTTP/1.1 200 "), "{headers}");
        drop(idle);
        deadline::until("all connections are closed", || {
            ferroced.descriptors() == before
        });
    });
}

#[test]
fn metrics_cost_no_wakeup_without_readers() {
    isolated("metrics_cost_no_wakeup_without_readers", || {
        let ferroced = Ferroced::start_with(&["--metrics", ADDRESS]);
        get("/metrics");
        // A reader has one deadline at most, and this one is gone.
        let settled = || {
            let before = ferroced.sleeps();
            !deadline::readable_within(never(), std::time::Duration::from_millis(300))
                && ferroced.sleeps() == before
        };
        deadline::until("ferroced sleeps", settled);
    });
}

/// Returns a descriptor that never becomes readable.
fn never() -> std::os::fd::OwnedFd {
    let (reading, writing) = rustix::pipe::pipe().expect("a pipe");
    // The writing end stays open.
    std::mem::forget(writing);
    reading
}

#[test]
fn used_port_is_named() {
    isolated("used_port_is_named", || {
        #[allow(clippy::disallowed_methods, reason = "takes the port")]
        let _taken = std::net::TcpListener::bind(ADDRESS).expect("free");
        let mut command = common::command();
        command.args(["--metrics", ADDRESS]).stderr(Stdio::piped());
        let output = command.output().expect("ferroced starts");
        assert!(!output.status.success());
        let errors = String::from_utf8(output.stderr).expect("text");
        assert!(
            errors.contains("cannot serve metrics on 127.0.0.1:9947"),
            "{errors}"
        );
        assert!(errors.contains("Address already in use"), "{errors}");
    });
}
