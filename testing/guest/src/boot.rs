//! Boots a kernel in the emulator, and follows its console until the guest ends.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::at;
use crate::report::Report;
use crate::suites::Suite;

/// The emulated machine. It has no disk and no network card.
///
/// Its clock counts instructions, a nanosecond each, and jumps ahead if the processor is idle. So a
/// guest is a machine with a fast processor, however slow the emulation is: no time limit of a test
/// depends on what else runs. The price is that only one processor is emulated: with such a clock,
/// Linux 6.1 does not start a second one.
const MACHINE: &str = "-accel tcg -icount shift=0,sleep=off -cpu max -smp 1 \
    -nodefaults -no-user-config -display none -serial stdio -no-reboot";

/// A guest that is ready to boot.
pub(crate) struct Guest<'a> {
    pub(crate) kernel: &'a Path,
    pub(crate) initramfs: PathBuf,
    /// Where the whole console is written.
    pub(crate) log: PathBuf,
    pub(crate) memory: u32,
    /// The longest time until the guest has ended.
    pub(crate) limit: Duration,
}

impl Guest<'_> {
    /// Boots the guest and waits for its end.
    pub(crate) fn run(&self, suites: &[&Suite]) -> Result<Report, String> {
        let mut log = File::create(&self.log).map_err(at(&self.log))?;
        let deadline = Instant::now() + self.limit;
        let mut emulator = self.start()?;
        let lines = lines_of(emulator.0.stdout.take().expect("piped"));
        let mut report = Report::new(suites);
        loop {
            match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    let line = String::from_utf8_lossy(&line);
                    let line = line.trim_end();
                    writeln!(log, "{line}").map_err(at(&self.log))?;
                    report.read(line, Instant::now());
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(report),
                Err(RecvTimeoutError::Timeout) => {
                    report.trouble(format!("the guest was stopped after {} s", self.limit.as_secs()));
                    return Ok(report);
                }
            }
        }
    }

    fn start(&self) -> Result<Emulator, String> {
        let mut command = Command::new("qemu-system-x86_64");
        command.args(MACHINE.split_whitespace());
        command.arg("-m").arg(format!("{}M", self.memory));
        command
            .arg("-kernel")
            .arg(self.kernel)
            .arg("-initrd")
            .arg(&self.initramfs);
        // A panic reboots, and the emulator ends instead of a reboot.
        command.args(["-append", "console=ttyS0 quiet loglevel=1 panic=-1"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let child = command.spawn();
        child
            .map(Emulator)
            .map_err(|error| format!("cannot start the emulator: {error}"))
    }
}

/// The emulator, which is killed when this value is dropped.
struct Emulator(Child);

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads lines on another thread, so that the caller can wait for a limited time.
fn lines_of(console: ChildStdout) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut console = BufReader::new(console);
        let mut line = Vec::new();
        while console.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            if sender.send(std::mem::take(&mut line)).is_err() {
                return;
            }
        }
    });
    receiver
}
