//! The rules of RFC 5040, 5041, 5044 and 6581, and of siw where it deviates, one test each.

mod captures;
mod drive;
mod errors;
mod failures;
mod fpdu_stream;
mod headers;
mod host;
mod mpa_frames;
mod mpa_setup;
mod operations;
mod starts;
mod states;
mod tcp_streams;
