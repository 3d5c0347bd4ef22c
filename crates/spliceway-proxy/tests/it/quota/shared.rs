//! A hand-over, in which two processes count for one quota.

use super::*;

#[test]
fn a_hand_over_loses_no_byte_of_a_quota() {
    let quotas = Quotas::new("handover", "socks5", &ann("\"1GB/day\""));
    let (mut program, target) = (quotas.run(), echo("127.0.0.1:0"));
    let mut client = session(&program, "ann", target);
    exchange(&mut client, 10_000);
    program.signal(Signal::USR2);
    let new = crate::handover::Process::in_line(&program.line("handed over: "));
    exchange(&mut client, 10_000);
    await_saved(&program, 40_000);
    // A third process takes over from the second one, which has the file open.
    new.signal(Signal::USR2);
    let _third = crate::handover::Process::in_line(&program.line("handed over: "));
    exchange(&mut client, 10_000);
    await_saved(&program, 60_000);
    drop(client);
    let record = program.line("end=client_eof");
    assert_eq!(field(&record, "bytes_up") + field(&record, "bytes_down"), 60_000);
}

#[test]
fn both_processes_of_a_hand_over_count_until_the_old_one_has_ended() {
    let quotas = Quotas::new("both", "mixed", &ann("\"1GB/day\""));
    let (mut program, target, to) = (quotas.run(), echo("127.0.0.1:0"), target(swallow));
    // A request with a body stays in the old process.
    let mut stays = http(
        &program,
        &format!("POST http://{to}/"),
        "Content-Length: 1000000000\r\n",
    );
    stays.write_all(&[7; 1000]).unwrap();
    program.signal(Signal::USR2);
    let new = crate::handover::Process::in_line(&program.line("handed over: "));
    let body = thread::spawn(move || {
        let _ = stays.write_all(&[7; 100_000]);
        while stays.write_all(&[7; 1000]).is_ok() {
            let_pass(Duration::from_millis(1));
        }
    });
    let mut client = session(&program, "ann", target);
    exchange(&mut client, 10_000);
    // The old process ends in the middle of the body.
    program.terminate();
    program.terminate();
    let record = program.line("end=drained");
    // Its last update precedes the first one that keeps the file open.
    program.line("stopped: cut 1 session");
    program.line("the old process has ended");
    body.join().unwrap();
    exchange(&mut client, 10_000);
    assert!(new.lives());
    await_saved(
        &program,
        field(&record, "bytes_up") + field(&record, "bytes_down") + 40_000,
    );
}

/// The bytes that the sessions of the next records have moved.
fn moved(program: &mut Program, sessions: u64) -> u64 {
    let records = (0..sessions).map(|_| program.line("end=quota"));
    records.map(|record| bytes_in(&record)).sum()
}

/// The same, up to the last record and the end of the old process. Each process may end its
/// sessions first.
fn moved_until_the_old_process_has_ended(program: &mut Program, sessions: u64) -> u64 {
    const ENDED: &str = "the old process has ended";
    let mut lines: Vec<_> = (0..=sessions)
        .map(|_| program.line_with_any(&["end=quota", ENDED]))
        .collect();
    lines.retain(|line| !line.contains(ENDED));
    assert_eq!(lines.len() as u64, sessions, "one of the lines is the end: {lines:#?}");
    lines.iter().map(|record| bytes_in(record)).sum()
}

fn bytes_in(record: &str) -> u64 {
    field(record, "bytes_up") + field(record, "bytes_down")
}

#[test]
fn the_two_processes_of_a_hand_over_use_one_quota() {
    const QUOTA: u64 = 300 * MB;
    // Less is not used if the other process has reserved it.
    const REMNANT: u64 = 64 << 10;
    const SESSIONS: u64 = 4;
    for (old_sessions, new_sessions) in [(2, 2), (1, 3)] {
        let name = format!("one-quota-{old_sessions}");
        let quotas = Quotas::new(&name, "mixed", &ann("\"300MB/day\""));
        let (mut program, to) = (quotas.run(), [swallow, flood].map(target));
        // Requests with a body stay in the old process.
        let head = format!("POST http://{}/", to[0]);
        let stay = (0..old_sessions).map(|_| http(&program, &head, "Content-Length: 100000000000\r\n"));
        let stay: Vec<_> = stay.collect();
        program.await_sum("spliceway_connections_active", &[], old_sessions);
        let new = crate::handover::upgrade(&mut program, None);
        let come: Vec<_> = (0..new_sessions).map(|_| session(&program, "ann", to[1])).collect();
        thread::scope(|scope| {
            for mut client in stay {
                scope.spawn(move || while client.write_all(&[7; 64 << 10]).is_ok() {});
            }
            for mut client in come {
                scope.spawn(move || {
                    client.write_all(b"x").unwrap();
                    let _ = std::io::copy(&mut client, &mut std::io::sink());
                });
            }
        });
        let moved = moved_until_the_old_process_has_ended(&mut program, SESSIONS);
        println!("{old_sessions} and {new_sessions} sessions: {moved} bytes");
        // The bound of each session is that without a hand-over.
        assert!(
            (QUOTA - REMNANT..=QUOTA + SESSIONS * (2 << 20)).contains(&moved),
            "{moved}"
        );
        await_saved(&program, moved);
        assert_eq!(ask(&program, "ann", to[1]).1, 2, "not allowed");
        assert!(new.lives());
    }
}

#[test]
fn an_upgrade_that_is_refused_leaves_the_whole_quota() {
    let quotas = Quotas::new("refused", "mixed", &ann("\"100MB/day\""));
    let (mut program, to) = (quotas.run(), endless());
    let mut client = session(&program, "ann", to);
    client.write_all(b"x").unwrap();
    let_pass(Duration::ZERO);
    quotas.config.write("no configuration");
    program.signal(Signal::USR2);
    program.line("the upgrade failed");
    let _ = std::io::copy(&mut client, &mut std::io::sink());
    let moved = moved(&mut program, 1);
    assert!((100 * MB..=100 * MB + (2 << 20)).contains(&moved), "{moved}");
    await_saved(&program, moved);
    let content = fs::read_to_string(quotas.path()).unwrap();
    assert!(
        !content.contains("processes") && !content.contains("reserved"),
        "{content}"
    );
}
