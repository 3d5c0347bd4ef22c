//! Tests of the program's promises, with one module for each. Every test runs the real binary, over
//! loopback or between namespaces.
#![forbid(unsafe_code)]

mod accept;
mod auth;
mod clients;
mod command_line;
mod drain;
mod early_answer; // answers of targets that close in the middle of an upload
mod forward;
mod harness;
mod http;
mod http_answers; // answers to requests with a body, or for another protocol
mod http_proxies; // duties of HTTP proxies to each other and to clients
mod leaving;
mod listen;
mod log;
mod metrics;
mod mixed;
mod policy;
mod proxy_header;
mod rates;
mod slow; // clients that take their time
mod socks4;
mod socks5;
mod timeouts;
mod udp;
mod udp_links;
mod upstream_proxy;
mod vanished; // a peer that is gone without a FIN
