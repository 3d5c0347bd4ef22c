//! Tests of the program's promises, with one module for each topic. Every test runs the real
//! binary, over loopback or between namespaces.
#![forbid(unsafe_code)]

mod accept;
// The records of sessions, in a file and on stdout.
mod access_log;
mod admin;
mod auth;
// Several backends of one forwarder.
mod balance;
mod bench;
// Which side, network or limit made a session slow.
mod bottleneck;
mod chains;
// Services that are given to a running program.
mod changes;
mod clients;
mod command_line;
// Messages about files that are wrong.
mod config_faults;
// What files mean.
mod config_files;
mod doctor;
#[cfg(feature = "tls")]
mod doctor_config;
mod drain;
// Targets that answer and close in the middle of an upload.
mod early_answer;
// The files of contrib/examples.
#[cfg(feature = "tls")]
mod examples;
mod forward;
// An upgrade: a new process takes over listeners and sessions.
mod handover;
// Completions and manual pages.
mod generated;
mod harness;
mod http;
// Answers to requests with a body, and to requests for another protocol.
mod http_answers;
// The duties of HTTP proxies to each other and to clients.
mod http_proxies;
// The examples for Kubernetes.
mod kubernetes;
mod leaving;
mod listen;
mod log;
// The memory of the process in a storm of clients.
mod memory;
mod metrics;
// Copies for observers.
mod mirror;
mod mixed;
// Pipes, devices and directories in the place of a file.
mod named_files;
// Names, as the C library resolves them.
mod names;
// Users that services know by the network of their clients.
mod networks;
// What a service manager is told.
mod notify;
// The description of the admin socket for generators of clients.
mod openapi;
// Metrics as Prometheus sees them, the dashboard and the alerts.
#[cfg(feature = "tls")]
mod monitoring;
// Connections of HTTP clients that carry many requests.
mod persistent;
// The file with the number of the process that serves.
mod pid_file;
mod policy;
mod proxy_header;
// What users have used of their quotas, and the file that keeps it.
mod quota;
mod rates;
// Changes of the configuration while the program runs.
mod reload;
// Services that a reload removes.
mod renamed;
// The access log is opened again, also while one process hands over to another.
mod rotation;
// System calls of a session.
mod session_cost;
mod slow;
// TLS clients by the name that they state.
mod sni;
mod socks4;
mod socks5;
mod status_page;
// Units of systemd, and the configuration of the package.
mod systemd;
// The targets that rules allow and refuse.
mod target_rules;
mod timeouts;
// Services that terminate the TLS of their clients.
#[cfg(feature = "tls")]
mod tls;
// The admin socket whose requests need a token.
mod tokens;
mod top;
// Connections that a firewall redirects, between namespaces with nft.
mod transparent;
mod udp;
mod udp_forward;
mod udp_links;
mod upstream_proxy;
mod user_limits;
// The commands that list and change the users in a file.
mod users;
// A peer that vanishes without a FIN.
mod vanished;
