//! A fault happens when a rule asks for it, and only on the rule's thread.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use spliceway_faults::{Call, Fault, Faults, Rule, Seen, SignalStorm, When};

/// Runs `body` on a new thread to which these rules apply. Returns its result and the faults.
fn meeting<T: Send + 'static>(rules: Vec<Rule>, body: impl FnOnce() -> T + Send + 'static) -> (T, Faults) {
    let run = move || {
        let faults = Faults::on_this_thread(rules).unwrap();
        (body(), faults)
    };
    thread::spawn(run).join().unwrap()
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    // If data never arrives, the test fails with an error and does not hang.
    connected.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    (connected, listener.accept().unwrap().0)
}

fn errno<T>(outcome: std::io::Result<T>) -> Option<i32> {
    outcome.err().and_then(|error| error.raw_os_error())
}

#[test]
fn the_nth_call_fails_with_the_given_errno_and_all_others_succeed() {
    let rule = Rule::new(Call::Pipe, When::Nth(2), Fault::Errno(libc::ENFILE));
    let (outcomes, faults) = meeting(vec![rule], || {
        (0..4).map(|_| errno(std::io::pipe())).collect::<Vec<_>>()
    });
    assert_eq!(outcomes, [None, Some(libc::ENFILE), None, None]);
    let expected = Seen {
        calls: 4,
        injected: 1,
        passed_since: 2,
    };
    assert_eq!(faults.seen(Call::Pipe), expected);
    assert_eq!(faults.injected(), 1);
    faults.await_injected(1);
    faults.await_end().unwrap();
}

#[test]
fn a_call_returns_the_injected_value_and_has_no_effect() {
    let (mut near, mut far) = pair();
    far.write_all(b"abc").unwrap();
    let rule = Rule::new(Call::Recv, When::FIRST, Fault::Returns(0));
    let ((first, second), faults) = meeting(vec![rule], move || {
        let mut bytes = [0; 3];
        let first = near.read(&mut bytes).unwrap();
        near.read_exact(&mut bytes).unwrap();
        (first, bytes)
    });
    assert_eq!((first, &second), (0, b"abc"));
    faults.await_end().unwrap();
}

#[test]
fn a_peek_is_not_a_receive_and_a_pipe_read_is_not_a_file_read() {
    let (near, mut far) = pair();
    far.write_all(b"abc").unwrap();
    let rules = [Call::Recv, Call::Peek, Call::ReadPipe, Call::Send].map(Rule::watch);
    let ((), faults) = meeting(rules.to_vec(), move || {
        near.peek(&mut [0]).unwrap();
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"x").unwrap();
        reader.read_exact(&mut [0]).unwrap();
        File::open("/dev/zero").unwrap().read_exact(&mut [0]).unwrap();
    });
    let calls = [Call::Peek, Call::ReadPipe, Call::Recv, Call::Send].map(|call| faults.seen(call).calls);
    assert_eq!(calls, [1, 1, 0, 0]);
}

#[test]
fn other_threads_meet_faults_only_if_the_thread_started_them() {
    let rule = Rule::new(Call::Pipe, When::Always, Fault::Errno(libc::EMFILE));
    let ((own, started), faults) = meeting(vec![rule], || {
        let started = thread::spawn(|| errno(std::io::pipe())).join().unwrap();
        (errno(std::io::pipe()), started)
    });
    assert_eq!((own, started), (Some(libc::EMFILE), Some(libc::EMFILE)));
    assert_eq!(
        errno(std::io::pipe()),
        None,
        "this thread has no filter: it started the thread that has one"
    );
    assert_eq!(faults.seen(Call::Pipe).calls, 2);
}

#[test]
fn a_program_started_by_the_thread_meets_the_faults() {
    let rule = Rule::new(Call::ReadPipe, When::FIRST, Fault::Errno(libc::EIO));
    let (mut cat, faults) = meeting(vec![rule], || {
        let mut cat = Command::new("cat");
        cat.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    });
    // The reader may be gone, because the fault may have happened earlier.
    let _ = cat.stdin.take().unwrap().write_all(b"x");
    faults.await_injected(1);
    assert!(!cat.wait().unwrap().success());
    faults.await_end().unwrap();
}

#[test]
fn a_thread_has_one_set_of_faults() {
    let (second, _) = meeting(vec![Rule::watch(Call::Pipe)], || {
        errno(Faults::on_this_thread(vec![Rule::watch(Call::Send)]))
    });
    assert_eq!(second, Some(libc::EBUSY));
}

#[test]
fn a_storm_interrupts_the_calls_of_its_thread() {
    let (mut near, mut far) = pair();
    let interrupted = thread::spawn(move || {
        let storm = SignalStorm::on_this_thread(Duration::from_micros(200)).unwrap();
        let error = near.read(&mut [0]).unwrap_err();
        (error.kind(), storm.signals())
    });
    let (kind, signals) = interrupted.join().unwrap();
    assert_eq!(kind, std::io::ErrorKind::Interrupted);
    assert!(signals > 0);
    let _ = far.write(b"x");
}
