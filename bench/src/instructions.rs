//! Instructions that a relay takes in user space, by Valgrind's count: the kernel's work is not in it, and it does not wobble, so it shows
//! what a stopwatch cannot. What a relay takes to start and to end is in two counts of different length, and not in their difference.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;

use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};

use crate::arms::Arm;

const ARMS: [Arm; 6] = [
    Arm::Tokio,
    Arm::Spliceway,
    Arm::Relay,
    Arm::Timeouts,
    Arm::Rate,
    Arm::Everything,
];

/// Bytes of each message of a round trip.
const SIZE: usize = 64;
const MIB: usize = 1 << 20;

/// Prints both figures for each arm. Without `valgrind` it says that it skips.
#[expect(clippy::print_stdout, reason = "this is the program's result")]
pub(crate) fn run(trips: usize, mib: usize) -> io::Result<()> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: there is no valgrind");
        return Ok(());
    }
    println!(
        "{:<28} {:>18} {:>18}",
        "instructions in user space", "a trip of 64 bytes", "a MiB of bulk"
    );
    for arm in ARMS {
        // Both begin alike, so that what a relay does once is in neither difference.
        let few = count(arm, 100, 16)?;
        let per_trip = (count(arm, 100 + trips, 16)? - few) as f64 / trips as f64;
        let per_mib = (count(arm, 100, 16 + mib)? - few) as f64 / mib as f64;
        println!("{:<28} {per_trip:>18.0} {per_mib:>18.0}", arm.name());
    }
    Ok(())
}

/// Instructions of a relay that carries so many round trips, and then so many MiB one way.
fn count(arm: Arm, trips: usize, mib: usize) -> io::Result<u64> {
    let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let name = arm.to_possible_value().expect("no arm is skipped");
    let mut relay = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe()?)
        .args(["relay", name.get_name(), &upstream.local_addr()?.to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut address = String::new();
    BufReader::new(relay.stdout.take().expect("piped")).read_line(&mut address)?;
    let carried = match address.trim().parse() {
        Ok(address) => carry(address, &upstream, trips, mib),
        Err(_) => Err(io::Error::other(format!("the relay {} did not start", arm.name()))),
    };
    kill_process(Pid::from_child(&relay), Signal::TERM)?;
    let said = relay.wait_with_output()?.stderr;
    carried?;
    collected(&String::from_utf8_lossy(&said)).ok_or_else(|| io::Error::other("valgrind told no count"))
}

fn carry(relay: SocketAddr, upstream: &TcpListener, trips: usize, mib: usize) -> io::Result<()> {
    let mut client = TcpStream::connect(relay)?;
    let (mut server, _) = upstream.accept()?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let mut message = [7; SIZE];
    for _ in 0..trips {
        client.write_all(&message)?;
        server.read_exact(&mut message)?;
        server.write_all(&message)?;
        client.read_exact(&mut message)?;
    }
    let (sent, mut received) = (vec![7; MIB], vec![0; MIB]);
    thread::scope(|scope| {
        let sending = scope.spawn(|| (0..mib).try_for_each(|_| client.write_all(&sent)));
        (0..mib).try_for_each(|_| server.read_exact(&mut received))?;
        sending.join().expect("sending does not panic")
    })
}

/// The count in what callgrind says at its end.
fn collected(said: &str) -> Option<u64> {
    said.lines()
        .find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_found_in_what_callgrind_says() {
        let said =
            "==7== \n==7== Events    : Ir\n==7== Collected : 22853406\n==7== \n==7== I   refs:      22,853,406\n";
        assert_eq!(collected(said), Some(22_853_406));
        assert_eq!(collected("==7== killed"), None);
    }
}
