//! One module for each thing the program promises; every test runs the real binary, over loopback or between namespaces.
#![forbid(unsafe_code)]

mod accept;
mod auth;
mod clients;
mod command_line;
mod drain;
mod forward;
mod harness;
mod http;
mod listen;
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
