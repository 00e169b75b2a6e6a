//! The requests of metrics: as much of HTTP/1.1 as a reader of metrics needs.
//!
//! Each connection has one request and one response. A request has no body.

use super::text::{CONTENT_TYPE, Scope};

/// Longest request. Prometheus sends about 300 bytes.
pub(super) const MAX_REQUEST: usize = 8192;
/// Most headers of a request.
const MAX_HEADERS: usize = 64;
/// The paths, for users who ask for another one.
const PATHS: &str = "/metrics has the metrics of links, /metrics/programs those of programs\n";

/// A request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// The end of the request has not arrived.
    Incomplete,
    /// A request for metrics.
    Metrics {
        scope: Scope,
        /// True if the client wants the headers alone.
        head: bool,
    },
    /// A request that is refused with this response.
    Refused(Vec<u8>),
}

/// Reads the request in `bytes`.
pub(super) fn parse(bytes: &[u8]) -> Request {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if bytes.len() < MAX_REQUEST => return Request::Incomplete,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            let text = format!("the request is longer than {MAX_REQUEST} bytes\n");
            return refuse("431 Request Header Fields Too Large", "", &text);
        }
        Err(error) => {
            let text = format!("this is no request of HTTP/1.1: {error}\n");
            return refuse("400 Bad Request", "", &text);
        }
    }
    let head = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return refuse("405 Method Not Allowed", "Allow: GET, HEAD\r\n", PATHS),
    };
    let target = request.path.unwrap_or_default();
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    let scope = match path {
        "/metrics" => Scope::Links,
        "/metrics/programs" => Scope::Programs,
        _ => return refuse("404 Not Found", "", PATHS),
    };
    Request::Metrics { scope, head }
}

/// Returns the response with these metrics; with `head`, without them.
pub(super) fn metrics(text: &str, head: bool) -> Vec<u8> {
    response("200 OK", "", CONTENT_TYPE, text, head)
}

fn refuse(status: &str, header: &str, text: &str) -> Request {
    let kind = "text/plain; charset=utf-8";
    Request::Refused(response(status, header, kind, text, false))
}

fn response(status: &str, header: &str, kind: &str, body: &str, head: bool) -> Vec<u8> {
    let length = body.len();
    let body = if head { "" } else { body };
    let text = format!(
        "HTTP/1.1 {status}\r\n{header}Content-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    );
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(request: &str) -> String {
        match parse(request.as_bytes()) {
            Request::Refused(response) => String::from_utf8(response).expect("text"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn path_selects_the_scope() {
        for (line, scope, head) in [
            ("GET /metrics", Scope::Links, false),
            ("GET /metrics?x=1", Scope::Links, false),
            ("GET /metrics/programs", Scope::Programs, false),
            ("HEAD /metrics", Scope::Links, true),
        ] {
            let request = format!("{line} HTTP/1.1\r\nHost: x\r\n\r\n");
            let expected = Request::Metrics { scope, head };
            assert_eq!(parse(request.as_bytes()), expected, "{line}");
        }
    }

    #[test]
    fn part_of_a_request_is_incomplete() {
        let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        for length in 0..request.len() {
            let part = parse(&request[..length]);
            assert_eq!(part, Request::Incomplete, "{length} bytes");
        }
    }

    #[test]
    fn other_requests_are_refused_with_the_reason() {
        let of = |line: &str| refused(&format!("{line} HTTP/1.1\r\n\r\n"));
        assert!(of("GET /").starts_with("HTTP/1.1 404 "));
        assert!(of("GET /").ends_with(PATHS));
        assert!(of("POST /metrics").contains("\r\nAllow: GET, HEAD\r\n"));
        assert!(refused("\x16\x03\x01").starts_with("HTTP/1.1 400 "));
        let many = "X: y\r\n".repeat(MAX_HEADERS + 1);
        let long = refused(&format!("GET /metrics HTTP/1.1\r\n{many}"));
        assert!(long.starts_with("HTTP/1.1 431 "), "{long}");
        let long = refused(&format!("GET /{}", "a".repeat(MAX_REQUEST)));
        assert!(long.starts_with("HTTP/1.1 431 "), "{long}");
    }

    #[test]
    fn head_has_the_length_and_no_body() {
        let text = String::from_utf8(metrics("abc", true)).expect("text");
        assert!(text.contains("\r\nContent-Length: 3\r\n"), "{text}");
        assert!(text.ends_with("\r\n\r\n"), "{text}");
        assert!(metrics("abc", false).ends_with(b"\r\n\r\nabc"));
    }
}
