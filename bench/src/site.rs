//! Client, relay and server in namespaces, and one run through them.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::set_current_timer_slack;
use spliceway_load::{Generator, schedule};
use spliceway_machine as machine;
use spliceway_net::{Family, Net, Node, address};

use crate::contender::Contender;
use crate::kind;
use crate::load::{Load, Profile};
use crate::meter::{CoreTime, Spinner};
use crate::relay::Relay;
use crate::results::Run;
use crate::{LOAD_CORE, RELAY_CORE};

/// The hosts' indices.
pub(crate) const CLIENT: usize = 0;
pub(crate) const RELAY: usize = 1;
pub(crate) const SERVER: usize = 2;

/// The network of one profile. Each namespace receives on its host's core. The relay has its own
/// core.
pub(crate) struct Site {
    pub(crate) net: Net,
    pub(crate) profile: Profile,
}

impl Site {
    pub(crate) fn new(profile: Profile) -> io::Result<Self> {
        // Delay lines run on this thread's cores.
        machine::pin_to(LOAD_CORE)?;
        let net = Net::joined_by(&profile.links())?;
        let site = Self { net, profile };
        if profile == Profile::Loopback {
            // On a host that paces (bbr), the pacing would dominate the measurement.
            let route = "dev lo table local proto kernel scope host src 127.0.0.1 congctl cubic";
            site.node(RELAY)
                .ip(&["127.0.0.0/8", "127.0.0.1"].map(|to| format!("route replace local {to} {route}")))?;
            return site.with_settings();
        }
        for (node, core) in [(CLIENT, LOAD_CORE), (RELAY, RELAY_CORE), (SERVER, LOAD_CORE)] {
            site.node(node).receive_on(core)?;
        }
        let net = site.net.with_forwarding()?;
        // This fails unless both connections use cubic.
        net.connect(0, 1, Family::V4)?;
        net.connect(1, 2, Family::V4)?;
        Self { net, profile }.with_settings()
    }

    /// Applies settings, so that no contender is affected by the previous one. There must also be
    /// ports for thousands of connections per second.
    fn with_settings(self) -> io::Result<Self> {
        let settings = [
            ("tcp_no_metrics_save", "1"),
            ("ip_local_port_range", "1024 65535"),
            ("tcp_tw_reuse", "1"),
        ];
        for node in self.net.nodes() {
            node.inside(|| {
                settings
                    .iter()
                    .try_for_each(|(name, value)| fs::write(format!("/proc/sys/net/ipv4/{name}"), value))
            })?;
        }
        Ok(self)
    }

    /// Returns one of the three hosts. On loopback, all three are the same node.
    pub(crate) fn node(&self, index: usize) -> &Node {
        self.net.node(index.min(self.net.nodes().len() - 1))
    }

    /// Returns the relay's address for clients, and the server's address for the relay.
    pub(crate) fn addresses(&self) -> (IpAddr, IpAddr) {
        match self.profile {
            Profile::Loopback => (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()),
            _ => (address(0, true, Family::V4), address(1, true, Family::V4)),
        }
    }

    /// Starts a relay that connects to a server.
    pub(crate) fn relay(&self, contender: &Contender, upstream: SocketAddr) -> io::Result<Relay> {
        let (listen, _) = self.addresses();
        self.node(RELAY)
            .inside(|| Relay::start(contender.kind, listen, &[upstream]))
    }

    /// Runs a load on a contender once.
    pub(crate) fn run(&self, load: &Load, contender: &Contender, round: usize) -> io::Result<Run> {
        let (_, server) = self.addresses();
        let listener = self.node(SERVER).inside(|| kind::listener((server, 0).into(), false))?;
        let relay = self.relay(contender, listener.local_addr()?)?;
        let shares = contender.kind.shares_cores();
        let spinner = match contender.spinner {
            true => Some(Spinner::start(RELAY_CORE)?),
            false => None,
        };
        // If the relay has both cores, no other thread may keep a core awake in its place.
        let awake = if shares { None } else { Some(Spinner::start(LOAD_CORE)?) };
        let mut accounts = Accounts {
            spinner: spinner.as_ref(),
            awake: awake.as_ref(),
            relay: shares.then_some(&relay),
            began: None,
            run: Run::new(contender, round),
        };
        let (window, end, grace) = times(load);
        let share = |at: f64| match load.overload {
            Some(_) if at < window.0.as_secs_f64() || at >= window.1.as_secs_f64() => 0.5 / 1.2,
            _ => 1.0,
        };
        let schedule = schedule(&load.offer, 1 + round as u64, end, share);
        let done = thread::scope(|scope| {
            let generating = scope.spawn(|| {
                self.node(CLIENT).enter()?;
                if shares {
                    machine::use_all_cores()?;
                }
                // The default slack would make the generator up to 50 µs late.
                set_current_timer_slack(std::num::NonZeroU64::new(1))?;
                let generator = Generator::connect(load.offer, listener, relay.address)?;
                let generator = match self.profile.is_near() {
                    true => generator,
                    // The delay line's thread is on the same core and must not wait.
                    false => generator.without_spin(),
                };
                generator.run(&schedule, window, grace, |opens| accounts.at_window(opens))
            });
            generating.join().expect("it does not panic")
        })?;
        let mut run = accounts.run;
        run.take(done);
        Ok(run)
    }

    /// Returns a contender's capacity in one flow, in bytes per second.
    pub(crate) fn capacity(&self, contender: &Contender) -> io::Result<f64> {
        let run = self.run(&Load::saturating(self.profile), contender, 0)?;
        Ok(run.bytes as f64 / run.wall)
    }
}

/// Time at half of the capacity before an overload, and time at half of it afterwards.
const LEAD: Duration = Duration::from_millis(500);
const RECOVERY: Duration = Duration::from_millis(1_500);

/// Returns the measured window of a load, the end of its schedule, and how long to wait for the
/// remaining messages.
fn times(load: &Load) -> ((Duration, Duration), Duration, Duration) {
    let warming = load.profile.warming();
    match load.overload {
        Some(overload) => {
            let opens = warming + LEAD;
            let closes = opens + overload;
            ((opens, closes), closes + RECOVERY, RECOVERY)
        }
        None => {
            let closes = warming + Duration::from_secs_f64(load.seconds());
            ((warming, closes), closes, Duration::from_millis(500))
        }
    }
}

/// The cores' work in the measured window.
struct Accounts<'a> {
    /// The spinner on the relay's core, in the control run.
    spinner: Option<&'a Spinner>,
    /// The spinner on the load's core.
    awake: Option<&'a Spinner>,
    /// A relay that shares its cores with the load. Only its process is counted.
    relay: Option<&'a Relay>,
    began: Option<Look>,
    run: Run,
}

struct Look {
    at: Instant,
    cores: [CoreTime; 2],
    /// Busy time from the spinners, or from the relay's process.
    busy: [Duration; 2],
}

impl Accounts<'_> {
    fn look(&self) -> io::Result<Look> {
        let relay = match (self.relay, self.spinner) {
            (Some(relay), _) => relay.cpu_time()?,
            (None, spinner) => spinner.map_or(Duration::ZERO, Spinner::busy),
        };
        Ok(Look {
            cores: [CoreTime::now(RELAY_CORE)?, CoreTime::now(LOAD_CORE)?],
            busy: [relay, self.awake.map_or(Duration::ZERO, Spinner::busy)],
            at: Instant::now(),
        })
    }

    fn at_window(&mut self, opens: bool) -> io::Result<()> {
        let after = self.look()?;
        let Some(before) = self.began.take().filter(|_| !opens) else {
            self.began = Some(after);
            return Ok(());
        };
        let seconds = |after: Duration, before: Duration| after.saturating_sub(before).as_secs_f64();
        let wall = seconds(after.at - before.at, Duration::ZERO);
        let [relay, load] = [0, 1].map(|core| seconds(after.cores[core].idle, before.cores[core].idle));
        let steals = [0, 1].map(|core| seconds(after.cores[core].steal, before.cores[core].steal));
        self.run.wall = wall;
        self.run.cpu = match self.spinner.is_some() || self.relay.is_some() {
            true => seconds(after.busy[0], before.busy[0]),
            false => (wall - relay).max(0.0),
        };
        self.run.load_busy = match self.awake {
            Some(_) => seconds(after.busy[1], before.busy[1]) / wall,
            None => 1.0 - (relay + load) / wall / 2.0,
        };
        self.run.steal = (steals[0] + steals[1]) / wall;
        Ok(())
    }
}
