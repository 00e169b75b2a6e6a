//! The rules of RFC 5040, 5041, 5044 and 6581, and of siw where it deviates, one test each.

mod captures;
mod fpdu_stream;
mod headers;
mod mpa_frames;
mod mpa_setup;
mod tcp_streams;
