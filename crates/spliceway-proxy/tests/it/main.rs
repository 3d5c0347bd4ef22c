//! One module for each thing the program promises; every test runs the real binary, over loopback or between namespaces.
#![forbid(unsafe_code)]

mod accept;
mod auth;
mod clients;
mod command_line;
mod drain;
mod early_answer; // what a target says before it closes in the middle of an upload
mod forward;
mod harness;
mod http;
mod http_answers; // to requests with a body, or for another protocol
mod http_proxies; // what HTTP proxies owe each other, and their clients
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
